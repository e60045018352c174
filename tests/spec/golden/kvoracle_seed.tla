---------------------------- MODULE kvoracle_seed ----------------------------
(* kvoracle: scope seed, the reference design.
   one request, one group, two chunks of two tokens: the case of vLLM PR #52923.
   Written by `kvoracle export tla --scope seed` from the machine in model/; change that, not
   this. *)
EXTENDS Integers

\* Sets of things and of numbers; the configuration says how many.
CONSTANTS Request, Tokens, Group, Chunks, Blocks, Chunk, Accepted

Life == {"absent", "waiting", "running", "preempted", "finished", "aborted"}
Mark == {"never offered", "covered", "held", "spoiled"}

\* tokens in one chunk of the group
tokens_per_chunk == [g \in Group |-> 2]

\* blocks in one chunk
blocks_per_chunk == [g \in Group |-> 1]

VARIABLES
    \* where the request stands
    life,
    \* tokens of its prompt
    prompt,
    \* tokens known: prompt and accepted output
    tokens,
    \* tokens whose KV is written, those of the step in flight included, drafts not
    computed,
    \* keys that have arrived
    keys,
    \* blocks known to the planner
    blocks,
    \* the next chunk to consider for storing
    cursor,
    \* the pool refused the last offer, or was reset: chunks left over are not owed
    excused,
    \* covered: declined, or part of a hit; held: stored with its final KV; spoiled: stored, but the KV
    \* was not computed, or was rewritten later; history, for properties alone
    mark,
    \* keys that the last planned job named; history, for properties alone
    job_keys,
    \* chunks' worth of blocks that it named; history, for properties alone
    job_blocks

vars == <<life, prompt, tokens, computed, keys, blocks, cursor, excused, mark,
          job_keys, job_blocks>>

Min(a, b) == IF a <= b THEN a ELSE b
Max(a, b) == IF a >= b THEN a ELSE b

\* Whether the request has finished or was aborted, and is not forgotten yet.
has_ended(r) ==
    life[r] = "finished" \/ life[r] = "aborted"

\* Whether the planner looks at the request: it runs, or has ended and is not forgotten.
planned_for(r) ==
    life[r] = "running" \/ life[r] = "finished" \/ life[r] = "aborted"

\* Chunks whose KV is computed and final.
by_tokens(r, g) ==
    computed[r] \div tokens_per_chunk[g]

\* Chunks all of whose blocks are allocated and known.
by_blocks(r, g) ==
    blocks[r, g] \div blocks_per_chunk[g]

\* Leading chunks that the design allows to store now.
storable(r, g) ==
    Min(by_tokens(r, g), Min(by_blocks(r, g), keys[r, g]))

Init ==
    /\ life = [r \in Request |-> "absent"]
    /\ prompt = [r \in Request |-> 0]
    /\ tokens = [r \in Request |-> 0]
    /\ computed = [r \in Request |-> 0]
    /\ keys = [r \in Request, g \in Group |-> 0]
    /\ blocks = [r \in Request, g \in Group |-> 0]
    /\ cursor = [r \in Request, g \in Group |-> 0]
    /\ excused = [r \in Request |-> FALSE]
    /\ mark = [r \in Request, g \in Group, c \in Chunk |-> "never offered"]
    /\ job_keys = [r \in Request, g \in Group |-> 0]
    /\ job_blocks = [r \in Request, g \in Group |-> 0]

TypeOK ==
    /\ life \in [Request -> Life]
    /\ prompt \in [Request -> Tokens]
    /\ tokens \in [Request -> Tokens]
    /\ computed \in [Request -> Tokens]
    /\ keys \in [Request \X Group -> Chunks]
    /\ blocks \in [Request \X Group -> Blocks]
    /\ cursor \in [Request \X Group -> Chunks]
    /\ excused \in [Request -> BOOLEAN]
    /\ mark \in [Request \X Group \X Chunk -> Mark]
    /\ job_keys \in [Request \X Group -> Chunks]
    /\ job_blocks \in [Request \X Group -> Chunks]

(* request r arrives, tokens in its prompt: p (done to the engine)
   A request enters the queue; it has computed nothing. *)
arrive(r, p) ==
    \* new
    /\ life[r] = "absent"
    \* a prompt is not empty
    /\ 1 <= p
    /\ life' = [life EXCEPT ![r] = "waiting"]
    /\ prompt' = [prompt EXCEPT ![r] = p]
    /\ tokens' = [tokens EXCEPT ![r] = p]
    /\ UNCHANGED <<computed, keys, blocks, cursor, excused, mark, job_keys, job_blocks>>

(* request r starts, tokens in the GPU's prefix cache: n
   Admission, for the first time or after preemption. The last token is always computed,
   since its logits are needed (vLLM: a hit is capped at one token less than the request). *)
start(r, n) ==
    \* waits
    /\ (life[r] = "waiting" \/ life[r] = "preempted")
    \* one token is left to compute
    /\ n < tokens[r]
    /\ life' = [life EXCEPT ![r] = "running"]
    /\ computed' = [computed EXCEPT ![r] = n]
    /\ UNCHANGED <<prompt, tokens, keys, blocks, cursor, excused, mark, job_keys, job_blocks>>

(* request r is computed, tokens so far: n
   A step's kernels write the KV of known tokens: a piece of prefill, or one decoded token. *)
compute(r, n) ==
    \* runs
    /\ life[r] = "running"
    \* further than before
    /\ computed[r] < n
    \* known tokens only
    /\ n <= tokens[r]
    /\ computed' = [computed EXCEPT ![r] = n]
    /\ UNCHANGED <<life, prompt, tokens, keys, blocks, cursor, excused, mark, job_keys,
                   job_blocks>>

(* request r samples a token, drafts accepted before it: a
   The step's output becomes known. The KV of accepted drafts was written in this step. *)
sample(r, a) ==
    \* runs
    /\ life[r] = "running"
    \* everything known is computed
    /\ computed[r] = tokens[r]
    \* no drafts without a draft group
    /\ a = 0
    \* stays within the scope
    /\ tokens[r] + a + 1 \in Tokens
    /\ tokens' = [tokens EXCEPT ![r] = tokens[r] + a + 1]
    /\ computed' = [computed EXCEPT ![r] = computed[r] + a]
    /\ UNCHANGED <<life, prompt, keys, blocks, cursor, excused, mark, job_keys, job_blocks>>

(* request r is preempted
   Its blocks are taken away; it will compute again from the start, or from a hit. *)
preempt(r) ==
    \* runs
    /\ life[r] = "running"
    \* between steps
    /\ computed[r] < tokens[r]
    /\ life' = [life EXCEPT ![r] = "preempted"]
    /\ computed' = [computed EXCEPT ![r] = 0]
    /\ blocks' = [r2 \in Request, g \in Group |-> IF r2 = r THEN 0 ELSE blocks[r2, g]]
    /\ cursor' = [r2 \in Request, g \in Group |-> IF r2 = r THEN cursor[r2, g] ELSE cursor[r2, g]]
    /\ UNCHANGED <<prompt, tokens, keys, excused, mark, job_keys, job_blocks>>

(* request r finishes
   Its last token is sampled; that token's KV is never computed. *)
finish(r) ==
    \* runs
    /\ life[r] = "running"
    \* has sampled
    /\ prompt[r] < tokens[r]
    \* only the last token is not computed
    /\ computed[r] + 1 = tokens[r]
    /\ life' = [life EXCEPT ![r] = "finished"]
    /\ UNCHANGED <<prompt, tokens, computed, keys, blocks, cursor, excused, mark, job_keys,
                   job_blocks>>

(* the client of request r goes away (done to the engine)
   It may have computed nothing, and have no block (vLLM issue #49118). *)
abort(r) ==
    \* lives
    /\ (life[r] = "waiting" \/ life[r] = "running" \/ life[r] = "preempted")
    \* between steps
    /\ computed[r] < tokens[r]
    /\ life' = [life EXCEPT ![r] = "aborted"]
    /\ UNCHANGED <<prompt, tokens, computed, keys, blocks, cursor, excused, mark, job_keys,
                   job_blocks>>

(* the planner forgets request r
   Nothing is owed to it any more; its name may be used again. *)
retire(r) ==
    \* ended
    /\ has_ended(r)
    \* nothing storable is left, or not owed
    /\ (excused[r] \/ (\A g \in Group : storable(r, g) <= cursor[r, g]))
    /\ life' = [life EXCEPT ![r] = "absent"]
    /\ prompt' = [prompt EXCEPT ![r] = 0]
    /\ tokens' = [tokens EXCEPT ![r] = 0]
    /\ computed' = [computed EXCEPT ![r] = 0]
    /\ keys' = [r2 \in Request, g \in Group |-> IF r2 = r THEN 0 ELSE keys[r2, g]]
    /\ blocks' = [r2 \in Request, g \in Group |-> IF r2 = r THEN 0 ELSE blocks[r2, g]]
    /\ cursor' = [r2 \in Request, g \in Group |-> IF r2 = r THEN 0 ELSE cursor[r2, g]]
    /\ excused' = [excused EXCEPT ![r] = FALSE]
    /\ mark' = [r2 \in Request, g \in Group, c \in Chunk |->
                   IF r2 = r THEN "never offered" ELSE mark[r2, g, c]]
    /\ job_keys' = [r2 \in Request, g \in Group |-> IF r2 = r THEN 0 ELSE job_keys[r2, g]]
    /\ job_blocks' = [r2 \in Request, g \in Group |-> IF r2 = r THEN 0 ELSE job_blocks[r2, g]]

(* keys of request r known in group g: n (done to the engine)
   Keys exist for whole chunks of known tokens, and arrive when they do, even after the end. *)
keys_arrive(r, g, n) ==
    \* known
    /\ life[r] /= "absent"
    \* more than before
    /\ keys[r, g] < n
    \* a key names known tokens
    /\ n <= (tokens[r] \div tokens_per_chunk[g])
    /\ keys' = [keys EXCEPT ![r, g] = n]
    /\ UNCHANGED <<life, prompt, tokens, computed, blocks, cursor, excused, mark, job_keys,
                   job_blocks>>

(* blocks of request r known in group g: n
   The scheduler allocated blocks and told the planner; how far ahead is its own affair. *)
blocks_told(r, g, n) ==
    \* runs
    /\ life[r] = "running"
    \* more than before
    /\ blocks[r, g] < n
    /\ blocks' = [blocks EXCEPT ![r, g] = n]
    /\ UNCHANGED <<life, prompt, tokens, computed, keys, cursor, excused, mark, job_keys,
                   job_blocks>>

(* the planner offers request r's chunks below n in group g: chunk d declined
   The pool takes the chunks from the cursor to `n`, but for chunk `d` which it holds already
   (`d` = `n`: it declines none). The job names the keys and the blocks of those chunks, each
   cut out of its own list. *)
plan_store(r, g, n, d) ==
    \* planned for
    /\ planned_for(r)
    \* beyond the cursor
    /\ cursor[r, g] < n
    \* storable
    /\ n <= storable(r, g)
    \* declines an offered chunk or none
    /\ (cursor[r, g] <= d /\ d <= n)
    /\ cursor' = [cursor EXCEPT ![r, g] = Max(cursor[r, g], n)]
    /\ excused' = [excused EXCEPT ![r] = FALSE]
    /\ mark' = [r2 \in Request, g2 \in Group, c \in Chunk |->
                   IF (r2 = r /\ g2 = g /\ cursor[r, g] <= c /\ c < n)
                   THEN (IF c = d
                         THEN (IF mark[r2, g2, c] = "never offered" THEN "covered" ELSE mark[r2, g2, c])
                         ELSE (IF c < (computed[r] \div tokens_per_chunk[g]) THEN "held" ELSE "spoiled"))
                   ELSE mark[r2, g2, c]]
    /\ job_keys' = [job_keys EXCEPT ![r, g] = Min(keys[r, g], n) - Min(keys[r, g], cursor[r, g])]
    /\ job_blocks' = [job_blocks EXCEPT ![r, g] = Min(by_blocks(r, g), n) - Min(by_blocks(r, g), cursor[r, g])]
    /\ UNCHANGED <<life, prompt, tokens, computed, keys, blocks>>

(* the host pool refuses the offer of request r
   No room: nothing is stored. The offer is made again while the request is tracked. *)
refuse(r) ==
    \* planned for
    /\ planned_for(r)
    \* something to offer
    /\ (\E g \in Group : cursor[r, g] < storable(r, g))
    /\ cursor' = [r2 \in Request, g \in Group |-> IF r2 = r THEN cursor[r2, g] ELSE cursor[r2, g]]
    /\ excused' = [excused EXCEPT ![r] = TRUE]
    /\ UNCHANGED <<life, prompt, tokens, computed, keys, blocks, mark, job_keys, job_blocks>>

(* the planner passes over request r in group g
   Nothing new to offer; the cursor is derived again all the same. *)
settle(r, g) ==
    \* planned for
    /\ planned_for(r)
    \* nothing to offer
    /\ storable(r, g) <= cursor[r, g]
    /\ cursor' = [cursor EXCEPT ![r, g] = Max(cursor[r, g], storable(r, g))]
    /\ UNCHANGED <<life, prompt, tokens, computed, keys, blocks, excused, mark, job_keys,
                   job_blocks>>

(* the host pool is reset (done to the engine)
   The host holds nothing any more, so everything is considered again; what had already ended
   is owed nothing (vLLM: `reset_cache` drops finished requests). *)
reset ==
    /\ cursor' = [r \in Request, g \in Group |-> 0]
    /\ excused' = [r \in Request |-> IF life[r] /= "absent" THEN has_ended(r) ELSE excused[r]]
    /\ mark' = [r \in Request, g \in Group, c \in Chunk |-> "never offered"]
    /\ job_keys' = [r \in Request, g \in Group |-> 0]
    /\ job_blocks' = [r \in Request, g \in Group |-> 0]
    /\ UNCHANGED <<life, prompt, tokens, computed, keys, blocks>>

Next ==
    \/ \E r \in Request, p \in Tokens : arrive(r, p)
    \/ \E r \in Request, n \in Tokens : start(r, n)
    \/ \E r \in Request, n \in Tokens : compute(r, n)
    \/ \E r \in Request, a \in Accepted : sample(r, a)
    \/ \E r \in Request : preempt(r)
    \/ \E r \in Request : finish(r)
    \/ \E r \in Request : abort(r)
    \/ \E r \in Request : retire(r)
    \/ \E r \in Request, g \in Group, n \in Chunks : keys_arrive(r, g, n)
    \/ \E r \in Request, g \in Group, n \in Blocks : blocks_told(r, g, n)
    \/ \E r \in Request, g \in Group, n \in Chunks, d \in Chunks : plan_store(r, g, n, d)
    \/ \E r \in Request : refuse(r)
    \/ \E r \in Request, g \in Group : settle(r, g)
    \/ reset

Spec == Init /\ [][Next]_vars

\* a planned job has exactly one key per chunk and exactly that chunk's blocks
KeysEqBlocks ==
    \A r \in Request, g \in Group : job_keys[r, g] = job_blocks[r, g]

\* nothing is stored before its key exists
KeyedOnly ==
    \A r \in Request, g \in Group, c \in Chunk :
        (mark[r, g, c] = "held" \/ mark[r, g, c] = "spoiled") => c < keys[r, g]

\* a chunk behind the cursor was offered, is covered by a hit, or was never storable
NoHole ==
    \A r \in Request, g \in Group, c \in Chunk :
        c < cursor[r, g] => mark[r, g, c] /= "never offered"

\* no chunk is stored whose KV can still change or was never (wholly) computed
NoVolatileStore ==
    \A r \in Request, g \in Group, c \in Chunk : mark[r, g, c] /= "spoiled"

\* at rest, with keys arrived and room in the pool, nothing storable is left
EventuallyStored ==
    \A r \in Request, g \in Group :
        (/\ planned_for(r)
         /\ ~(\/ (/\ planned_for(r)
                  /\ cursor[r, g] < cursor[r, g] + 1
                  /\ cursor[r, g] + 1 <= storable(r, g)
                  /\ cursor[r, g] <= cursor[r, g] + 1
                  /\ cursor[r, g] + 1 <= cursor[r, g] + 1)
              \/ (/\ planned_for(r)
                  /\ cursor[r, g] < cursor[r, g] + 1
                  /\ cursor[r, g] + 1 <= storable(r, g)
                  /\ cursor[r, g] <= cursor[r, g]
                  /\ cursor[r, g] <= cursor[r, g] + 1)))
          => storable(r, g) <= cursor[r, g]

\* cursors move back only at reset or resume, and then to a place that re-offers what is lost
MonotoneProgress ==
    [][/\ (\/ \E r \in Request : preempt(r)
           \/ \E r \in Request, g \in Group, n \in Chunks, d \in Chunks : plan_store(r, g, n, d)
           \/ \E r \in Request : refuse(r)
           \/ \E r \in Request, g \in Group : settle(r, g))
            => (\A r \in Request, g \in Group : cursor[r, g] <= cursor'[r, g])]_vars

==============================================================================
