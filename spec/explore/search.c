/* Breadth-first search of packed states, in parallel, exact, in one fixed order.
 *
 * Compiled once for each machine and scope: at the line `TABLES` below stand the number of
 * words and cells of a state (W, CELLS) and the scope's tables; at the line `MACHINE`, generated
 * from the machine,
 *
 *     unpack(p, s)           a packed state's cells, one byte each
 *     canonical(p)           the least of the states that differ by a renaming only
 *     successors(s, p, k)    emit() for each step out of the state, in order
 *     broken(s, asked)       the properties among those asked that the state breaks
 *     seen(s, asked)         the situations among those asked that the state shows
 *
 * All states are stored, in the order in which a search by one thread meets them: `states`,
 * and by the same number `parents`.  The hash table holds their numbers, each with 32 bits of
 * its state's hash; states are always compared whole.
 *
 * The states of a level are expanded in blocks, a block in tasks, in three phases:
 *
 *   expand   tasks in parallel: all steps out of the task's states; what the table holds is
 *            dropped (the table is only read), the rest are candidates
 *   insert   shards of the table in parallel: each takes its own candidates, in order, so
 *            that of equal states the first one stands, whatever the threads' timing
 *   commit   tasks in parallel: new states are numbered in order, stored, and judged
 *
 * Nothing that a block does depends on the number of threads.  A search that must stop within
 * a block (a violation, enough states) says what a search by one thread had counted by then.
 */

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define TABLE static const
#define FUNCTION static inline
#define STEPS static
#define VALUE(...) ({ __VA_ARGS__ y; }) /* of gcc and clang */

typedef uint64_t word;
TABLES

#define TASK_STATES 128
#define BLOCK_TASKS 64
#define SHARDS 64
#define KINDS 64 /* properties, and situations: bits of a word */
#define NONE UINT64_MAX
#define NO_PARENT UINT32_MAX
#define CANDIDATE_BITS 20
#define MOST_STATES (UINT32_MAX - ((uint64_t)BLOCK_TASKS << CANDIDATE_BITS) - 1)
#define SMALLEST_SHARD 1024
#define FULL 0.7    /* the table grows when fuller than this */
#define FULLEST 0.85 /* and is never fuller than this */
#define BUFFERS (4u << 20) /* kept free for the candidates of a block, more where it has more */
#define STATE_BYTES (W * sizeof(word) + sizeof(uint32_t))

enum status { GOES_ON, COMPLETE, BROKEN, ENOUGH, MEMORY, NEGATIVE, REFUSED };

/* What a caller may read; also what a checkpoint keeps. */
typedef struct {
    uint64_t distinct, generated, cut, steps; /* steps: successors judged as steps */
    uint64_t depth, low, high;                /* states low..high-1 are to be expanded next */
    uint64_t parent[KINDS], nth[KINDS];       /* where each property breaks first, or NONE */
    uint64_t shown[KINDS], shown_depth[KINDS]; /* the first state to show a situation, or NONE */
} Counts;

typedef struct Task {
    word *state;
    uint64_t *hash;
    uint32_t *position, *order;
    uint64_t *slot;
    uint8_t *won;
    uint16_t *from;
    uint32_t n, room, total, wins;
    uint32_t ends[TASK_STATES], cuts[TASK_STATES], cut;
    uint32_t start[SHARDS + 1];
    uint32_t base;
    uint64_t chosen; /* step properties to judge */
    int negative;    /* the state expanded now has a step to a negative value */
    uint32_t negative_from;
    int failed;
    uint32_t first[KINDS]; /* position of the first successor to break a property */
    uint64_t shown[KINDS];
} Task;

/* --- what the machine's code calls ---------------------------------------------------- */

static inline int min2(int a, int b) { return a < b ? a : b; }
static inline int max2(int a, int b) { return a > b ? a : b; }

/* Rounded down, below 0 too; the divisor is at least 1. */
static inline int quotient(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

static inline word part(const word *t, unsigned cell, word mask)
{
    return t[WORD[cell]] >> SHIFT[cell] & mask;
}

static inline void put(word *t, unsigned cell, word mask, word value)
{
    t[WORD[cell]] = (t[WORD[cell]] & ~(mask << SHIFT[cell])) | value << SHIFT[cell];
}

static void emit(Task *k, const word *t, uint64_t breaks);

MACHINE

typedef struct {
    Counts now, before, stopped;
    word *states;
    uint32_t *parents;
    uint64_t *table;
    uint64_t shard_slots, capacity, budget, max_states;
    uint32_t shard_used[SHARDS];
    uint64_t over_states, over_steps, situations;
    int find_all, threads, status;
    Task task[BLOCK_TASKS];
    int tasks, task_states, block;
    uint64_t next;
    int grow, quit;
    double until;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    int waiting, round;
} Search;

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *pages(uint64_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
#ifdef MADV_HUGEPAGE
    madvise(at, bytes, MADV_HUGEPAGE);
#endif
    return at;
}

static inline uint64_t hash(const word *p)
{
    uint64_t h = 0x9E3779B97F4A7C15u;
    for (int i = 0; i < W; i++) {
        unsigned __int128 m = (unsigned __int128)(p[i] ^ h) * 0xD6E8FEB86659FD93u;
        h = (uint64_t)m ^ (uint64_t)(m >> 64);
    }
    h = (h ^ h >> 32) * 0xFF51AFD7ED558CCDu;
    return h ^ h >> 29;
}

static inline int same(const word *a, const word *b)
{
    word difference = 0;
    for (int i = 0; i < W; i++)
        difference |= a[i] ^ b[i];
    return !difference;
}

/* --- the table: 64 shards, each a ring of slots; a slot holds tag << 32 | number + 1 --- */

static inline uint32_t shard_of(uint64_t h) { return h >> 58; }

static inline uint64_t home(const Search *x, uint64_t h)
{
    return ((h >> 32 << 6 & 0xFFFFFFFFu) * x->shard_slots) >> 32;
}

static inline uint64_t entry(uint64_t h, uint64_t number)
{
    return h << 32 | (number + 1);
}

static inline const word *state_at(const Search *x, uint64_t number)
{
    if (number < x->now.distinct)
        return x->states + number * W;
    number -= x->now.distinct; /* a candidate of this block */
    return x->task[number >> CANDIDATE_BITS].state
        + (number & ((1u << CANDIDATE_BITS) - 1)) * W;
}

static inline uint64_t *ring(const Search *x, uint64_t h)
{
    return x->table + shard_of(h) * x->shard_slots;
}

/* The state's number, or NONE, with the place in its shard where it would go. */
static inline uint64_t look_up(const Search *x, const word *p, uint64_t h, uint64_t *place)
{
    const uint64_t *slots = ring(x, h);
    uint64_t at = home(x, h), e;
    while ((e = slots[at])) {
        if (e >> 32 == (h & 0xFFFFFFFFu) && same(state_at(x, (e & 0xFFFFFFFFu) - 1), p))
            return (e & 0xFFFFFFFFu) - 1;
        if (++at == x->shard_slots)
            at = 0;
    }
    *place = at;
    return NONE;
}

static uint64_t buffers(const Search *x)
{
    uint64_t each = sizeof(word) * W + 2 * sizeof(uint64_t) + 2 * sizeof(uint32_t) + 3, sum = 0;
    for (int i = 0; i < BLOCK_TASKS; i++)
        sum += x->task[i].room * each;
    return sum + sizeof(Search);
}

static uint64_t in_use(uint64_t states, uint64_t shard_slots)
{
    return states * STATE_BYTES + SHARDS * shard_slots * sizeof(uint64_t);
}

/* What the memory allowed leaves for states and table. */
static uint64_t for_states(const Search *x)
{
    uint64_t kept = buffers(x) > BUFFERS ? buffers(x) : BUFFERS;
    return x->budget > kept ? x->budget - kept : 0;
}

/* How many slots a shard needs so that `states` fit, the present number if they do; 0: they do
 * not fit into the memory allowed. */
static uint64_t slots_for(const Search *x, uint64_t states, uint64_t fullest_shard)
{
    uint64_t present = x->shard_slots, wanted = present ? present : SMALLEST_SHARD;
    if (states > x->capacity)
        return 0;
    while (states > FULL * SHARDS * wanted || fullest_shard > 0.9 * wanted)
        wanted *= 2;
    if (in_use(states, wanted) <= for_states(x))
        return wanted;
    /* No room to double: as many slots as leave room for the states they can hold. */
    wanted = for_states(x) / (STATE_BYTES * FULLEST + sizeof(uint64_t)) / SHARDS;
    if (wanted < present)
        wanted = present;
    if (wanted < SMALLEST_SHARD || states > FULLEST * SHARDS * wanted
        || fullest_shard > 0.95 * wanted || in_use(states, wanted) > for_states(x))
        return 0;
    return wanted;
}

static int renew_table(Search *x, uint64_t shard_slots)
{
    if (x->table)
        munmap(x->table, SHARDS * x->shard_slots * sizeof(uint64_t));
    x->table = pages(SHARDS * shard_slots * sizeof(uint64_t));
    x->shard_slots = shard_slots;
    memset(x->shard_used, 0, sizeof x->shard_used);
    return x->table != NULL;
}

/* All states are different: threads need only agree on who takes an empty slot. */
static void refill(Search *x, uint64_t from, uint64_t to)
{
    enum { AHEAD = 16 };
    uint64_t h[AHEAD];
    for (uint64_t i = from; i < to + AHEAD; i++) {
        uint64_t late = i - AHEAD;
        if (i >= from + AHEAD) {
            uint64_t g = h[late % AHEAD], *slots = ring(x, g), at = home(x, g), empty = 0;
            while (!__atomic_compare_exchange_n(&slots[at], &empty, entry(g, late), 0,
                                                __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
                empty = 0;
                if (++at == x->shard_slots)
                    at = 0;
            }
            __atomic_fetch_add(&x->shard_used[shard_of(g)], 1, __ATOMIC_RELAXED);
        }
        if (i < to) {
            h[i % AHEAD] = hash(x->states + i * W);
            __builtin_prefetch(&ring(x, h[i % AHEAD])[home(x, h[i % AHEAD])], 1);
        }
    }
}

/* --- expand ----------------------------------------------------------------------- */

static int widen(Task *k)
{
    uint32_t room = k->room ? 2 * k->room : 1024;
    void *p;
    if (room > 1u << CANDIDATE_BITS)
        return 0;
#define WIDEN(field, each) \
    if (!(p = realloc(k->field, (size_t)room * (each)))) \
        return 0; \
    k->field = p;
    WIDEN(state, sizeof(word) * W)
    WIDEN(hash, sizeof(uint64_t))
    WIDEN(slot, sizeof(uint64_t))
    WIDEN(position, sizeof(uint32_t))
    WIDEN(order, sizeof(uint32_t))
    WIDEN(won, sizeof(uint8_t))
    WIDEN(from, sizeof(uint16_t))
    k->room = room;
    return 1;
}

static void note_broken(uint32_t first[KINDS], uint32_t position, uint64_t which)
{
    for (; which; which &= which - 1) {
        int i = __builtin_ctzll(which);
        if (position < first[i])
            first[i] = position;
    }
}

static __attribute__((noinline)) void emit(Task *k, const word *t, uint64_t breaks)
{
    if (k->n == k->room && !widen(k)) {
        k->failed = 1;
        return;
    }
    memcpy(k->state + (size_t)k->n * W, t, sizeof(word) * W);
    canonical(k->state + (size_t)k->n * W);
    if (breaks)
        note_broken(k->first, k->n, breaks);
    k->n++;
}

static void expand(Search *x, Task *k)
{
    enum { PROBE = 16, COMPARE = 32 };
    uint64_t from = x->now.low + (uint64_t)(k - x->task) * x->task_states;
    uint64_t to = from + x->task_states;
    uint32_t parent = 0, kept = 0, count[SHARDS] = {0};
    uint64_t found[COMPARE];
    uint8_t s[CELLS + 1];
    if (to > x->now.high)
        to = x->now.high;
    k->n = k->cut = k->wins = 0;
    k->negative = k->failed = 0;
    k->negative_from = UINT32_MAX;
    k->chosen = x->over_steps;
    memset(k->first, 0xFF, sizeof k->first);
    memset(k->shown, 0xFF, sizeof k->shown);
    for (uint64_t i = from; i < to; i++) {
        const word *p = x->states + i * W;
        unpack(p, s);
        successors(s, p, k);
        k->ends[i - from] = k->n;
        k->cuts[i - from] = k->cut;
        if (k->negative && k->negative_from == UINT32_MAX)
            k->negative_from = i - from;
    }
    k->total = k->n;
    for (uint32_t i = 0; i < k->n; i++)
        k->hash[i] = hash(k->state + (size_t)i * W);
    /* Look each up, its slot and then the state it names fetched ahead. */
    for (uint32_t i = 0; i < k->n + COMPARE; i++) {
        if (i < k->n)
            __builtin_prefetch(&ring(x, k->hash[i])[home(x, k->hash[i])]);
        if (i >= PROBE && i - PROBE < k->n) {
            uint64_t h = k->hash[i - PROBE], at = home(x, h), e;
            const uint64_t *slots = ring(x, h);
            while ((e = slots[at]) && e >> 32 != (h & 0xFFFFFFFFu))
                if (++at == x->shard_slots)
                    at = 0;
            found[(i - PROBE) % COMPARE] = e;
            if (e)
                __builtin_prefetch(x->states + ((e & 0xFFFFFFFFu) - 1) * W);
        }
        if (i >= COMPARE) {
            uint32_t j = i - COMPARE;
            const word *p = k->state + (size_t)j * W;
            uint64_t e = found[j % COMPARE], place;
            while (k->ends[parent] <= j)
                parent++;
            if (e && (same(x->states + ((e & 0xFFFFFFFFu) - 1) * W, p)
                      || look_up(x, p, k->hash[j], &place) != NONE))
                continue;
            memmove(k->state + (size_t)kept * W, p, sizeof(word) * W);
            k->hash[kept] = k->hash[j];
            k->position[kept] = j;
            k->from[kept] = parent;
            k->won[kept] = 0;
            count[shard_of(k->hash[kept])]++;
            kept++;
        }
    }
    k->n = kept;
    k->start[0] = 0;
    for (int i = 0; i < SHARDS; i++)
        k->start[i + 1] = k->start[i] + count[i];
    memcpy(count, k->start, sizeof count);
    for (uint32_t j = 0; j < kept; j++)
        k->order[count[shard_of(k->hash[j])]++] = j;
}

/* --- insert ------------------------------------------------------------------------ */

static void insert(Search *x, uint32_t shard)
{
    enum { AHEAD = 6 };
    for (int t = 0; t < x->tasks; t++) {
        Task *k = &x->task[t];
        uint32_t wins = 0, last = k->start[shard + 1];
        for (uint32_t i = k->start[shard]; i < last; i++) {
            uint32_t j = k->order[i];
            uint64_t h = k->hash[j], place;
            if (i + AHEAD < last) {
                uint64_t g = k->hash[k->order[i + AHEAD]];
                __builtin_prefetch(&ring(x, g)[home(x, g)], 1);
            }
            if (look_up(x, k->state + (size_t)j * W, h, &place) != NONE)
                continue;
            ring(x, h)[place] = entry(h, x->now.distinct + ((uint64_t)t << CANDIDATE_BITS | j));
            k->won[j] = 1;
            k->slot[j] = shard * x->shard_slots + place;
            wins++;
        }
        if (wins)
            __atomic_fetch_add(&k->wins, wins, __ATOMIC_RELAXED);
        x->shard_used[shard] += wins;
    }
}

/* --- commit ------------------------------------------------------------------------ */

static void commit(Search *x, Task *k)
{
    uint64_t number = k->base;
    uint64_t from = x->now.low + (uint64_t)(k - x->task) * x->task_states;
    uint64_t wanted = 0;
    uint8_t s[CELLS + 1];
    for (int i = 0; i < KINDS; i++)
        if (x->situations >> i & 1 && x->now.shown[i] == NONE)
            wanted |= (uint64_t)1 << i;
    for (uint32_t j = 0; j < k->n; j++) {
        if (!k->won[j])
            continue;
        const word *p = k->state + (size_t)j * W;
        memcpy(x->states + number * W, p, sizeof(word) * W);
        x->parents[number] = from + k->from[j];
        x->table[k->slot[j]] = entry(k->hash[j], number);
        unpack(p, s);
        uint64_t breaks = broken(s, x->over_states);
        if (breaks)
            note_broken(k->first, k->position[j], breaks);
        uint64_t shows = wanted ? seen(s, wanted) : 0;
        wanted &= ~shows;
        for (; shows; shows &= shows - 1)
            k->shown[__builtin_ctzll(shows)] = number;
        number++;
    }
}

/* --- one block after another ---------------------------------------------------------- */

/* Where in the sequence of successors something happens: a task, and a position among its
 * successors (or, where said, among its parents). */
typedef struct { int task; uint32_t position; } Place;
#define NOWHERE ((Place){-1, 0})

static int earlier(Place a, Place b)
{
    return a.task != b.task ? a.task < b.task : a.position < b.position;
}

static uint32_t parent_of(const Task *k, uint32_t position)
{
    uint32_t q = 0;
    while (k->ends[q] <= position)
        q++;
    return q;
}

/* The counts of a search that ends here: at a successor that breaks a property, its parent
 * expanded wholly, or behind a parent. */
static void stop_at(Search *x, Place at, enum status status)
{
    const Task *k = &x->task[at.task];
    uint32_t q = status == BROKEN ? parent_of(k, at.position) : at.position;
    uint32_t judged = status == BROKEN ? at.position + 1 : k->ends[q];
    Counts *c = &x->stopped;
    *c = x->now; /* what broke and what was shown */
    c->distinct = x->before.distinct;
    for (int t = 0; t < at.task; t++) {
        c->distinct += x->task[t].wins;
        c->generated += x->task[t].total;
        c->steps += x->task[t].total;
        c->cut += x->task[t].cut;
    }
    c->generated += k->ends[q];
    c->steps += judged;
    c->cut += k->cuts[q];
    for (uint32_t j = 0; j < k->n; j++)
        c->distinct += k->won[j] && k->position[j] < judged;
    for (int i = 0; i < KINDS; i++)
        if (c->shown[i] != NONE && c->shown[i] >= c->distinct)
            c->shown[i] = NONE;
    x->status = status;
}

/* The first parent, in its task, after which there are enough states. */
static Place enough_after(const Search *x)
{
    uint64_t have = x->before.distinct;
    for (int t = 0; t < x->tasks; t++) {
        const Task *k = &x->task[t];
        uint32_t j = 0, parents = x->task_states;
        if ((uint64_t)(t + 1) * x->task_states > x->before.high - x->before.low)
            parents = x->before.high - x->before.low - (uint64_t)t * x->task_states;
        for (uint32_t q = 0; q < parents; q++) {
            for (; j < k->n && k->position[j] < k->ends[q]; j++)
                have += k->won[j];
            if (have >= x->max_states)
                return (Place){t, q};
        }
    }
    return NOWHERE;
}

/* Where each property not broken before breaks first in this block, NOWHERE if it does not;
 * whether the search ends there, and at which of these places. */
static Place breaks_first(Search *x, Place fresh[KINDS])
{
    uint64_t chosen = x->over_states | x->over_steps;
    Place least = NOWHERE, last = NOWHERE;
    int open = 0;
    for (int i = 0; i < KINDS; i++) {
        fresh[i] = NOWHERE;
        if (!(chosen >> i & 1) || x->now.nth[i] != NONE)
            continue;
        for (int t = 0; t < x->tasks && fresh[i].task < 0; t++)
            if (x->task[t].first[i] != UINT32_MAX)
                fresh[i] = (Place){t, x->task[t].first[i]};
        if (fresh[i].task < 0) {
            open++;
            continue;
        }
        if (least.task < 0 || earlier(fresh[i], least))
            least = fresh[i];
        if (last.task < 0 || earlier(last, fresh[i]))
            last = fresh[i];
    }
    return !x->find_all ? least : open ? NOWHERE : last;
}

/* The first state with a step to a negative value: a task and a parent in it. */
static Place fault_at(const Search *x)
{
    for (int t = 0; t < x->tasks; t++)
        if (x->task[t].negative_from != UINT32_MAX)
            return (Place){t, x->task[t].negative_from};
    return NOWHERE;
}

static Place steps_before(const Search *x, Place parent)
{
    const Task *k = &x->task[parent.task];
    return (Place){parent.task, parent.position ? k->ends[parent.position - 1] : 0};
}

static void finish_block(Search *x)
{
    Place fresh[KINDS], stop = breaks_first(x, fresh), fault = fault_at(x), limit = NOWHERE;
    Place end; /* nothing at or behind this counts */

    if (x->now.distinct >= x->max_states)
        limit = enough_after(x);
    if (stop.task >= 0 && limit.task >= 0) {
        end = (Place){limit.task, x->task[limit.task].ends[limit.position]};
        if (earlier(stop, end))
            limit = NOWHERE;
        else
            stop = NOWHERE;
    }
    end = limit.task >= 0 ? (Place){limit.task, x->task[limit.task].ends[limit.position]}
        : stop.task >= 0 ? (Place){stop.task, stop.position + 1} : (Place){x->tasks, 0};
    /* A fault in the machine counts if the search comes that far. */
    if (fault.task >= 0 && (limit.task >= 0 ? !earlier(limit, fault)
                            : stop.task < 0 || !earlier(stop, steps_before(x, fault)))) {
        x->stopped = x->before;
        x->stopped.low += (uint64_t)fault.task * x->task_states + fault.position;
        x->status = NEGATIVE;
        return;
    }
    for (int i = 0; i < KINDS; i++) {
        if (fresh[i].task < 0 || !earlier(fresh[i], end))
            continue;
        const Task *k = &x->task[fresh[i].task];
        uint32_t q = parent_of(k, fresh[i].position);
        x->now.parent[i] = x->before.low + (uint64_t)fresh[i].task * x->task_states + q;
        x->now.nth[i] = fresh[i].position - (q ? k->ends[q - 1] : 0);
    }
    for (int i = 0; i < KINDS; i++)
        for (int t = 0; t < x->tasks && x->now.shown[i] == NONE; t++)
            if (x->task[t].shown[i] != NONE) {
                x->now.shown[i] = x->task[t].shown[i];
                x->now.shown_depth[i] = x->now.depth;
            }
    if (stop.task >= 0) {
        stop_at(x, stop, BROKEN);
        return;
    }
    if (limit.task >= 0) {
        stop_at(x, limit, ENOUGH);
        return;
    }
    for (int t = 0; t < x->tasks; t++) {
        x->now.generated += x->task[t].total;
        x->now.steps += x->task[t].total;
        x->now.cut += x->task[t].cut;
    }
    x->now.low += (uint64_t)x->tasks * x->task_states;
    if (x->now.low < x->now.high)
        return;
    x->now.low = x->now.high;
    if (x->now.distinct == x->now.high) {
        x->now.depth--;
        x->status = COMPLETE;
    } else {
        x->now.high = x->now.distinct;
        x->now.depth++;
    }
}

static void plan_block(Search *x)
{
    uint64_t left = x->now.high - x->now.low;
    x->task_states = left >= TASK_STATES * BLOCK_TASKS
        ? TASK_STATES : (left + BLOCK_TASKS - 1) / BLOCK_TASKS;
    if (x->task_states < 8)
        x->task_states = 8;
    x->tasks = (left + x->task_states - 1) / x->task_states;
    if (x->tasks > BLOCK_TASKS)
        x->tasks = BLOCK_TASKS;
    x->before = x->now;
    x->next = 0;
}

/* Room for all candidates, whether new or equal to each other; else the search ends here. */
static void make_room(Search *x)
{
    uint64_t all = x->now.distinct, fullest = 0, slots;
    x->next = 0;
    x->grow = 0;
    for (int t = 0; t < x->tasks; t++) {
        if (x->task[t].failed)
            x->status = REFUSED;
        all += x->task[t].n;
    }
    for (int i = 0; i < SHARDS; i++) {
        uint64_t used = x->shard_used[i];
        for (int t = 0; t < x->tasks; t++)
            used += x->task[t].start[i + 1] - x->task[t].start[i];
        fullest = used > fullest ? used : fullest;
    }
    x->stopped = x->before;
    if (x->status != GOES_ON)
        return;
    slots = slots_for(x, all, fullest);
    if (!slots) {
        x->status = MEMORY;
        return;
    }
    x->grow = slots != x->shard_slots;
    if (x->grow && !renew_table(x, slots))
        x->status = REFUSED;
}

static void number_states(Search *x)
{
    uint64_t number = x->now.distinct;
    for (int t = 0; t < x->tasks; t++) {
        x->task[t].base = number;
        number += x->task[t].wins;
    }
    x->next = 0;
    x->block = number - x->now.distinct;
}

static void meet(Search *x)
{
    pthread_mutex_lock(&x->lock);
    int round = x->round;
    if (++x->waiting == x->threads) {
        x->waiting = 0;
        x->round++;
        pthread_cond_broadcast(&x->turn);
    } else
        while (round == x->round)
            pthread_cond_wait(&x->turn, &x->lock);
    pthread_mutex_unlock(&x->lock);
}

static uint64_t take(Search *x)
{
    return __atomic_fetch_add(&x->next, 1, __ATOMIC_RELAXED);
}

static void work(Search *x, int first)
{
    enum { PIECE = 1 << 16 };
    uint64_t i;
    for (;;) {
        if (first)
            plan_block(x);
        meet(x);
        while ((i = take(x)) < (uint64_t)x->tasks)
            expand(x, &x->task[i]);
        meet(x);
        if (first)
            make_room(x);
        meet(x);
        if (x->status != GOES_ON)
            return;
        if (x->grow) {
            while ((i = take(x)) * PIECE < x->now.distinct)
                refill(x, i * PIECE, i * PIECE + PIECE < x->now.distinct
                       ? i * PIECE + PIECE : x->now.distinct);
            meet(x);
            if (first)
                x->next = 0;
            meet(x);
        }
        while ((i = take(x)) < SHARDS)
            insert(x, i);
        meet(x);
        if (first)
            number_states(x);
        meet(x);
        while ((i = take(x)) < (uint64_t)x->tasks)
            commit(x, &x->task[i]);
        meet(x);
        if (first) {
            x->now.distinct += x->block;
            finish_block(x);
            x->quit = x->status != GOES_ON || now_seconds() >= x->until;
        }
        meet(x);
        if (x->quit)
            return;
    }
}

static void *helper(void *x)
{
    work(x, 0);
    return NULL;
}

/* --- what the caller may do -------------------------------------------------------------- */

#define API __attribute__((visibility("default")))

API void kv_close(Search *x)
{
    if (!x)
        return;
    if (x->states)
        munmap(x->states, x->capacity * W * sizeof(word));
    if (x->parents)
        munmap(x->parents, x->capacity * sizeof(uint32_t));
    if (x->table)
        munmap(x->table, SHARDS * x->shard_slots * sizeof(uint64_t));
    for (int i = 0; i < BLOCK_TASKS; i++) {
        Task *k = &x->task[i];
        free(k->state), free(k->hash), free(k->slot), free(k->position);
        free(k->order), free(k->won), free(k->from);
    }
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->turn);
    free(x);
}

/* A search of at most `budget` bytes that has seen the initial state; NULL if memory is short. */
API Search *kv_open(uint64_t budget, int threads, uint64_t over_states, uint64_t over_steps,
                    uint64_t situations, int find_all, uint64_t max_states, const word *initial)
{
    Search *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->turn, NULL);
    x->budget = budget;
    x->threads = threads;
    x->over_states = over_states;
    x->over_steps = over_steps;
    x->situations = situations;
    x->find_all = find_all;
    x->max_states = max_states ? max_states : UINT64_MAX;
    x->capacity = budget / STATE_BYTES;
    if (x->capacity > MOST_STATES)
        x->capacity = MOST_STATES;
    x->states = pages(x->capacity * W * sizeof(word));
    x->parents = pages(x->capacity * sizeof(uint32_t));
    if (!x->states || !x->parents || !slots_for(x, 1, 1) || !renew_table(x, SMALLEST_SHARD)) {
        kv_close(x);
        return NULL;
    }
    memcpy(x->states, initial, W * sizeof(word));
    x->parents[0] = NO_PARENT;
    x->now.distinct = x->now.high = x->now.depth = 1;
    memset(x->now.parent, 0xFF, sizeof x->now.parent);
    memset(x->now.nth, 0xFF, sizeof x->now.nth);
    memset(x->now.shown, 0xFF, sizeof x->now.shown);
    uint8_t s[CELLS + 1];
    unpack(x->states, s);
    uint64_t breaks = broken(s, over_states), shows = seen(s, situations);
    for (int i = 0; i < KINDS; i++) {
        if (breaks >> i & 1)
            x->now.nth[i] = 0; /* without a parent */
        if (shows >> i & 1)
            x->now.shown[i] = 0;
    }
    refill(x, 0, 1);
    return x;
}

/* Take up a search where a checkpoint left it: its states and parents are in place.  0 if they
 * are none of this machine's, or do not fit. */
API int kv_restore(Search *x, const Counts *kept)
{
    uint64_t slots;
    if (!kept->distinct || kept->distinct > x->capacity || kept->low > kept->high
        || kept->high > kept->distinct)
        return 0;
    for (uint64_t i = 0; i < kept->distinct; i++) {
        uint8_t s[CELLS + 1];
        word used[W] = {0};
        unpack(x->states + i * W, s);
        for (int c = 0; c < CELLS; c++) {
            if (s[c] >= LIMIT[c] && i)
                return 0;
            used[WORD[c]] |= (word)s[c] << SHIFT[c];
        }
        if (!same(used, x->states + i * W) || (i ? x->parents[i] >= i : x->parents[i] != NO_PARENT))
            return 0;
    }
    slots = slots_for(x, kept->distinct, 0);
    if (!slots || !renew_table(x, slots))
        return 0;
    x->now = *kept;
    refill(x, 0, kept->distinct);
    return 1;
}

/* Search for about so many seconds, whole blocks; what became of it. */
API int kv_run(Search *x, double seconds)
{
    pthread_t others[64];
    int wanted = x->threads < 64 ? x->threads : 64, started = 1;
    if (x->status != GOES_ON)
        return x->status;
    x->until = now_seconds() + seconds;
    x->quit = 0;
    x->threads = wanted;
    /* The others wait for the lock until it is known how many they are. */
    pthread_mutex_lock(&x->lock);
    while (started < wanted && !pthread_create(&others[started], NULL, helper, x))
        started++;
    x->threads = started;
    pthread_mutex_unlock(&x->lock);
    work(x, 1);
    for (int i = 1; i < started; i++)
        pthread_join(others[i], NULL);
    return x->status;
}

API const Counts *kv_now(const Search *x)
{
    return x->status == GOES_ON || x->status == COMPLETE ? &x->now : &x->stopped;
}

/* The counts to take the search up from: those before a block that ended it. */
API const Counts *kv_resumable(const Search *x)
{
    return x->status == GOES_ON || x->status == COMPLETE ? &x->now : &x->before;
}

API word *kv_states(Search *x) { return x->states; }
API uint32_t *kv_parents(Search *x) { return x->parents; }
API uint64_t kv_capacity(const Search *x) { return x->capacity; }

/* Bytes in use for states, table and buffers. */
API uint64_t kv_memory(const Search *x)
{
    return in_use(x->now.distinct, x->shard_slots) + buffers(x);
}

/* The number of a state, or NONE. */
API uint64_t kv_find(const Search *x, const word *p)
{
    uint64_t place;
    return look_up(x, p, hash(p), &place);
}
