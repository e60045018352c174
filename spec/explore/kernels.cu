/* Breadth-first search of packed states by very many threads: the kernels.
 *
 * One text for a GPU (CUDA C++, compiled at run time) and for processors (C, where a kernel is
 * a loop over its index, shared by a few threads), so that tests run on one what runs on the
 * other.  At the line `TABLES` stand the number of words and cells of a state (W, CELLS) and the
 * scope's tables; at the line `MACHINE`, generated from the machine, the functions that search.c
 * names.  `device.py` runs the kernels; a block of states of one level goes through
 *
 *     count    for each state, how many steps lead out of it (and how many the scope cuts)
 *     expand   all steps, in order, each at its place among the block's candidates
 *     insert   each candidate into the table, unless the state is known; of equal candidates
 *              the first one stands, however the threads are timed
 *     settle   whether a candidate is the one that stands
 *     commit   those, numbered in order, stored and judged
 *
 * so that states are numbered as a search by one thread meets them.  The table is a ring of a
 * power of two of slots; a slot holds 32 bits of a state's hash and the state's number plus 1,
 * where candidates are numbered behind all states.  States are always compared whole.
 */

#ifdef __CUDACC__
#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif
#define restrict __restrict__
#define TABLE static __device__ const
#define FUNCTION static __device__ inline
#define STEPS template <class Task> static __device__
#define VALUE(...) [&] { __VA_ARGS__ return y; }()
#else
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#define TABLE static const
#define FUNCTION static inline
#define STEPS static
#define VALUE(...) ({ __VA_ARGS__ y; }) /* of gcc and clang */
#endif

typedef uint64_t word;
TABLES

#define KINDS 64
#define NONE (~(uint64_t)0)
#define NO_PARENT 0xFFFFFFFFu
#define LOW 0xFFFFFFFFull

/* All of 8 bytes: the caller fills it as an array of numbers. */
typedef struct {
    word *states;
    uint32_t *parents;
    uint64_t *table;
    uint64_t mask; /* of slots */
    uint64_t distinct, low;
    word *candidates;
    uint32_t *from;  /* a candidate's parent in the block */
    uint64_t *place; /* its slot, or NONE: the state is known */
    uint32_t *won;
    uint32_t *rank;  /* how many candidates have won, up to this one */
    uint64_t *count; /* by parent: steps */
    uint64_t *ends;  /* the same added up */
    uint64_t *cuts;
    uint64_t over_states, over_steps, wanted; /* what to judge, and to look for */
    word *query;     /* a state to find */
    uint64_t found;
    uint64_t faulty; /* the first state, in the block, with a step to a negative value */
    uint64_t first[KINDS]; /* the first candidate to break a property */
    uint64_t shown[KINDS]; /* the first state to show a situation */
} Control;

#ifdef __CUDACC__
FUNCTION uint64_t mul_high(uint64_t a, uint64_t b) { return __umul64hi(a, b); }
FUNCTION uint64_t load(const uint64_t *p) { return *(const volatile uint64_t *)p; }

FUNCTION uint64_t swap(uint64_t *p, uint64_t old, uint64_t value)
{
    return atomicCAS((unsigned long long *)p, (unsigned long long)old, (unsigned long long)value);
}

FUNCTION void lower(uint64_t *p, uint64_t value)
{
    atomicMin((unsigned long long *)p, (unsigned long long)value);
}

FUNCTION int lowest_bit(uint64_t bits) { return __ffsll((long long)bits) - 1; }

#define KERNEL(name) \
    FUNCTION void name(Control *x, uint64_t i); \
    extern "C" __global__ void kv_##name(Control *x, uint64_t n) \
    { \
        uint64_t all = (uint64_t)gridDim.x * blockDim.x; \
        for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += all) \
            name(x, i); \
    } \
    FUNCTION void name(Control *x, uint64_t i)
#else
FUNCTION uint64_t mul_high(uint64_t a, uint64_t b) { return (unsigned __int128)a * b >> 64; }
FUNCTION uint64_t load(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }

/* The value before; it is replaced if it is the old one. */
FUNCTION uint64_t swap(uint64_t *p, uint64_t old, uint64_t value)
{
    __atomic_compare_exchange_n(p, &old, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return old;
}

FUNCTION void lower(uint64_t *p, uint64_t value)
{
    uint64_t old = load(p);
    while (value < old && !__atomic_compare_exchange_n(p, &old, value, 0, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED))
        ;
}

FUNCTION int lowest_bit(uint64_t bits) { return __builtin_ctzll(bits); }

typedef struct {
    void (*kernel)(Control *, uint64_t);
    Control *x;
    uint64_t n, next;
} Loop;

static void *turn(void *of)
{
    enum { PIECE = 64 };
    Loop *loop = of;
    uint64_t i;
    while ((i = __atomic_fetch_add(&loop->next, PIECE, __ATOMIC_RELAXED)) < loop->n)
        for (uint64_t end = i + PIECE < loop->n ? i + PIECE : loop->n; i < end; i++)
            loop->kernel(loop->x, i);
    return 0;
}

static void over(void (*kernel)(Control *, uint64_t), Control *x, uint64_t n, int threads)
{
    pthread_t others[64];
    Loop loop = {kernel, x, n, 0};
    int started = 0;
    while (started < threads - 1 && started < 64 && n > 256
           && !pthread_create(&others[started], 0, turn, &loop))
        started++;
    turn(&loop);
    while (started)
        pthread_join(others[--started], 0);
}

#define KERNEL(name) \
    static void name(Control *x, uint64_t i); \
    __attribute__((visibility("default"))) \
    void kv_##name(Control *x, uint64_t n, int threads) { over(name, x, n, threads); } \
    static void name(Control *x, uint64_t i)
#endif

/* --- what the machine's code calls ---------------------------------------------------- */

FUNCTION int min2(int a, int b) { return a < b ? a : b; }
FUNCTION int max2(int a, int b) { return a > b ? a : b; }

/* Rounded down, below 0 too; the divisor is at least 1. */
FUNCTION int quotient(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

FUNCTION word part(const word *t, unsigned cell, word mask)
{
    return t[WORD[cell]] >> SHIFT[cell] & mask;
}

FUNCTION void put(word *t, unsigned cell, word mask, word value)
{
    t[WORD[cell]] = (t[WORD[cell]] & ~(mask << SHIFT[cell])) | value << SHIFT[cell];
}

/* Takes the steps out of one state: counts them, or (with a place to go) writes them. */
#ifdef __CUDACC__
struct Counter {
    static const uint64_t chosen = 0;
    uint32_t n, cut;
    int negative;
};

struct Writer {
    uint64_t chosen, n;
    uint32_t cut, from;
    int negative;
    Control *x;
};

FUNCTION void canonical(word *p);
FUNCTION void emit(Counter *k, const word *, uint64_t) { k->n++; }
#else
typedef struct {
    uint64_t chosen, n;
    uint32_t cut, from;
    int negative;
    Control *x;
} Task;
typedef Task Counter, Writer;
static inline void canonical(word *p);
#endif

FUNCTION void note(uint64_t *first, uint64_t which, uint64_t value)
{
    for (; which; which &= which - 1)
        lower(&first[lowest_bit(which)], value);
}

FUNCTION void emit(Writer *k, const word *t, uint64_t breaks)
{
#ifndef __CUDACC__
    if (!k->x) {
        k->n++;
        return;
    }
#endif
    word *to = k->x->candidates + k->n * W;
    for (int i = 0; i < W; i++)
        to[i] = t[i];
    canonical(to);
    k->x->from[k->n] = k->from;
    note(k->x->first, breaks, k->n);
    k->n++;
}

MACHINE

FUNCTION uint64_t hash(const word *p)
{
    uint64_t h = 0x9E3779B97F4A7C15u;
    for (int i = 0; i < W; i++) {
        uint64_t a = p[i] ^ h, b = 0xD6E8FEB86659FD93u;
        h = a * b ^ mul_high(a, b);
    }
    h = (h ^ h >> 32) * 0xFF51AFD7ED558CCDu;
    return h ^ h >> 29;
}

FUNCTION int same(const word *a, const word *b)
{
    word difference = 0;
    for (int i = 0; i < W; i++)
        difference |= a[i] ^ b[i];
    return !difference;
}

FUNCTION uint64_t entry(uint64_t h, uint64_t number)
{
    return (h & ~LOW) | (number + 1);
}

/* --- kernels ---------------------------------------------------------------------------- */

KERNEL(count)
{
    const word *p = x->states + (x->low + i) * W;
    uint8_t s[CELLS + 1];
    Counter k = {0};
    unpack(p, s);
    successors(s, p, &k);
    x->count[i] = k.n;
    x->cuts[i] = k.cut;
    if (k.negative)
        lower(&x->faulty, i);
}

KERNEL(expand)
{
    const word *p = x->states + (x->low + i) * W;
    uint8_t s[CELLS + 1];
    Writer k = {0};
    k.chosen = x->over_steps;
    k.n = i ? x->ends[i - 1] : 0;
    k.from = i;
    k.x = x;
    unpack(p, s);
    successors(s, p, &k);
}

KERNEL(insert)
{
    const word *p = x->candidates + i * W;
    uint64_t h = hash(p), at = h & x->mask, mine = entry(h, x->distinct + i);
    for (;; at = (at + 1) & x->mask) {
        uint64_t e = load(&x->table[at]);
        if (!e && !(e = swap(&x->table[at], 0, mine)))
            break;
        if ((e ^ h) >> 32)
            continue;
        e = (e & LOW) - 1;
        if (e < x->distinct) {
            if (!same(x->states + e * W, p))
                continue;
            at = NONE;
        } else {
            if (!same(x->candidates + (e - x->distinct) * W, p))
                continue;
            lower(&x->table[at], mine);
        }
        break;
    }
    x->place[i] = at;
}

KERNEL(settle)
{
    uint64_t at = x->place[i];
    x->won[i] = at != NONE && (x->table[at] & LOW) == x->distinct + i + 1;
}

KERNEL(commit)
{
    const word *p = x->candidates + i * W;
    uint8_t s[CELLS + 1];
    uint64_t number = x->distinct + x->rank[i] - 1;
    if (!x->won[i])
        return;
    for (int j = 0; j < W; j++)
        x->states[number * W + j] = p[j];
    x->parents[number] = x->low + x->from[i];
    x->table[x->place[i]] = entry(x->table[x->place[i]], number);
    unpack(p, s);
    note(x->first, broken(s, x->over_states), i);
    if (x->wanted)
        note(x->shown, seen(s, x->wanted), number);
}

/* All states, which are different, into an empty table. */
KERNEL(refill)
{
    uint64_t h = hash(x->states + i * W), at = h & x->mask;
    while (swap(&x->table[at], 0, entry(h, i)))
        at = (at + 1) & x->mask;
}

KERNEL(find)
{
    uint64_t h = hash(x->query), at = h & x->mask, e;
    (void)i;
    x->found = NONE;
    for (; (e = load(&x->table[at])); at = (at + 1) & x->mask)
        if (!((e ^ h) >> 32) && same(x->states + ((e & LOW) - 1) * W, x->query)) {
            x->found = (e & LOW) - 1;
            return;
        }
}

/* Whether each state is one of this machine's, and its parent an earlier one; the first is the
 * initial one, which begins with what it likes. */
KERNEL(check)
{
    const word *p = x->states + i * W;
    uint8_t s[CELLS + 1];
    word used[W] = {0};
    int good = i ? x->parents[i] < i : x->parents[i] == NO_PARENT;
    unpack(p, s);
    for (int c = 0; c < CELLS; c++) {
        good &= s[c] < LIMIT[c] || !i;
        used[WORD[c]] |= (word)s[c] << SHIFT[c];
    }
    if (!good || !same(used, p))
        lower(&x->faulty, i);
}
