/* The steps between the states of a finished search, and the fair runs among them.
 *
 * Stands behind search.c; generated from the machine, at the line `MACHINE` below,
 *
 *     DEMANDS, OWED, LABELS  how many demands, duties and labels there are
 *     DEMAND                 by label, the demand that a step meets, or -1
 *     steps(s, p, k)         for each step out of the state, its label into k->label, and then
 *                            edge(), or leaves() if it leaves the scope
 *     waits(s, out)          the duties that wait in the state, as bits
 *
 * A demand is enabled where a step with its label is possible, within the scope or out of it. */

#define NO_COMPONENT UINT32_MAX

typedef struct {
    Search *x;
    uint64_t states, edges, room;
    uint64_t *first;  /* by state, its first edge; one more at the end */
    uint32_t *target;
    uint16_t *label_of;
    word *enabled, *inside, *waiting; /* by state: demands, demands, duties, as bits */
    uint32_t *component, *number, *low, *stack, *path;
    uint64_t *next;
    uint64_t state; /* whose steps are taken now */
    uint32_t label;
    int negative, failed;
} Graph;

typedef struct {
    uint64_t waiting, unjudged;
    uint64_t fair; /* the first state of a fair component, or NONE */
    uint64_t rest; /* the first in which no demand is enabled, or NONE */
} Verdict;

static void edge(Graph *k, const word *t);
static void leaves(Graph *k);

MACHINE

#define DEMAND_WORDS ((DEMANDS + 63) / 64 + !DEMANDS)
#define OWED_WORDS ((OWED + 63) / 64 + !OWED)

static inline void demand(word *bits, uint32_t label)
{
    int d = DEMAND[label];
    if (d >= 0)
        bits[d / 64] |= (word)1 << d % 64;
}

static void leaves(Graph *k)
{
    demand(k->enabled + k->state * DEMAND_WORDS, k->label);
}

static void edge(Graph *k, const word *t)
{
    uint64_t place, number = look_up(k->x, t, hash(t), &place);
    if (k->edges == k->room) {
        uint64_t room = k->room ? k->room * 2 : 1 << 16;
        void *target = realloc(k->target, room * sizeof *k->target);
        if (target)
            k->target = target;
        void *label = realloc(k->label_of, room * sizeof *k->label_of);
        if (label)
            k->label_of = label;
        if (!target || !label)
            k->failed = 1;
        else
            k->room = room;
    }
    if (number == NONE || k->failed) {
        k->failed = 1;
        return;
    }
    k->target[k->edges] = (uint32_t)number;
    k->label_of[k->edges++] = (uint16_t)k->label;
    demand(k->enabled + k->state * DEMAND_WORDS, k->label);
    demand(k->inside + k->state * DEMAND_WORDS, k->label);
}

API void kv_graph_close(Graph *k)
{
    if (!k)
        return;
    free(k->first), free(k->target), free(k->label_of);
    free(k->enabled), free(k->inside), free(k->waiting);
    free(k->component), free(k->number), free(k->low);
    free(k->stack), free(k->path), free(k->next);
    free(k);
}

/* The graph of a search that is complete; NULL if memory is short. */
API Graph *kv_graph(Search *x)
{
    Graph *k = calloc(1, sizeof *k);
    uint8_t s[CELLS + 1];
    if (!k)
        return NULL;
    uint64_t n = k->states = x->now.distinct;
    k->x = x;
    k->first = calloc(n + 1, sizeof *k->first);
    k->enabled = calloc(n * DEMAND_WORDS, sizeof(word));
    k->inside = calloc(n * DEMAND_WORDS, sizeof(word));
    k->waiting = calloc(n * OWED_WORDS, sizeof(word));
    k->component = malloc(n * sizeof(uint32_t));
    k->number = malloc(n * sizeof(uint32_t));
    k->low = malloc(n * sizeof(uint32_t));
    k->stack = malloc(n * sizeof(uint32_t));
    k->path = malloc(n * sizeof(uint32_t));
    k->next = malloc(n * sizeof(uint64_t));
    if (!k->first || !k->enabled || !k->inside || !k->waiting || !k->component || !k->number
        || !k->low || !k->stack || !k->path || !k->next)
        k->failed = 1;
    for (k->state = 0; k->state < n && !k->failed; k->state++) {
        const word *p = x->states + k->state * W;
        unpack(p, s);
        k->first[k->state] = k->edges;
        steps(s, p, k);
        waits(s, k->waiting + k->state * OWED_WORDS);
    }
    if (k->failed) {
        kv_graph_close(k);
        return NULL;
    }
    k->first[n] = k->edges;
    return k;
}

API uint64_t kv_graph_steps(const Graph *k) { return k->edges; }
API const uint64_t *kv_graph_first(const Graph *k) { return k->first; }
API const uint32_t *kv_graph_target(const Graph *k) { return k->target; }
API const uint16_t *kv_graph_label(const Graph *k) { return k->label_of; }
API const word *kv_graph_enabled(const Graph *k) { return k->enabled; }
API const word *kv_graph_inside(const Graph *k) { return k->inside; }
API const uint32_t *kv_graph_component(const Graph *k) { return k->component; }

/* --- fair runs ------------------------------------------------------------------------ */

static inline int waiting(const Graph *k, uint64_t i, uint32_t owed)
{
    return k->waiting[i * OWED_WORDS + owed / 64] >> owed % 64 & 1;
}

/* Whether all demands are among the bits. */
static int all(const word *met)
{
    for (int d = 0; d < DEMANDS; d++)
        if (!(met[d / 64] >> d % 64 & 1))
            return 0;
    return 1;
}

/* The component that the states at and above `bottom` of the stack form, judged: a run may
 * always stand still, so one that goes round through all of a component is fair if each demand
 * is disabled in one of its states or taken by one of its steps. */
static void close_component(Graph *k, const uint8_t *ending, uint64_t bottom, uint64_t top,
                            Verdict *v)
{
    word met[DEMAND_WORDS] = {0}, outside[DEMAND_WORDS] = {0};
    uint32_t least = UINT32_MAX, number = k->stack[bottom];
    for (uint64_t j = bottom; j < top; j++)
        k->component[k->stack[j]] = number;
    for (uint64_t j = bottom; j < top; j++) {
        uint64_t i = k->stack[j];
        least = i < least ? (uint32_t)i : least;
        for (int w = 0; w < DEMAND_WORDS; w++) {
            met[w] |= ~k->enabled[i * DEMAND_WORDS + w];
            outside[w] |= ~k->inside[i * DEMAND_WORDS + w];
        }
        for (uint64_t e = k->first[i]; e < k->first[i + 1]; e++)
            if (k->component[k->target[e]] == number && !ending[k->label_of[e]])
                demand(met, k->label_of[e]);
    }
    if (all(met)) {
        if (least < v->fair)
            v->fair = least;
        return;
    }
    for (int w = 0; w < DEMAND_WORDS; w++)
        outside[w] |= met[w];
    if (all(outside))
        v->unjudged += top - bottom;
}

/* The strongly connected components of the states in which a duty waits, joined by steps that
 * are not `ending` (by label): Tarjan's algorithm, without recursion.  `component` tells which
 * states lie together. */
API void kv_graph_judge(Graph *k, uint32_t owed, const uint8_t *ending, Verdict *v)
{
    enum { OPEN = UINT32_MAX - 1 };
    uint64_t depth = 0, top = 0;
    uint32_t found = 0, *order = k->component; /* NO_COMPONENT: not met; OPEN: on the stack */
    *v = (Verdict){0, 0, NONE, NONE};
    memset(order, 0xFF, k->states * sizeof *order);
    for (uint64_t root = 0; root < k->states; root++) {
        if (!waiting(k, root, owed))
            continue;
        v->waiting++;
        word demanded = 0;
        for (int w = 0; w < DEMAND_WORDS; w++)
            demanded |= k->enabled[root * DEMAND_WORDS + w];
        if (!demanded && v->rest == NONE)
            v->rest = root;
        if (order[root] != NO_COMPONENT)
            continue;
#define MEET(i) \
    do { \
        k->path[depth++] = (uint32_t)(i); \
        k->stack[top++] = (uint32_t)(i); \
        k->low[i] = k->number[i] = found++; \
        k->next[i] = k->first[i]; \
        order[i] = OPEN; \
    } while (0)
        MEET(root);
        while (depth) {
            uint32_t i = k->path[depth - 1];
            if (k->next[i] < k->first[i + 1]) {
                uint64_t e = k->next[i]++;
                uint32_t to = k->target[e];
                if (ending[k->label_of[e]] || !waiting(k, to, owed))
                    continue;
                if (order[to] == NO_COMPONENT)
                    MEET(to);
                else if (order[to] == OPEN && k->number[to] < k->low[i])
                    k->low[i] = k->number[to];
                continue;
            }
            depth--;
            if (depth && k->low[i] < k->low[k->path[depth - 1]])
                k->low[k->path[depth - 1]] = k->low[i];
            if (k->low[i] == k->number[i]) {
                uint64_t bottom = top;
                while (k->stack[--bottom] != i)
                    ;
                close_component(k, ending, bottom, top, v);
                top = bottom;
            }
        }
    }
}
