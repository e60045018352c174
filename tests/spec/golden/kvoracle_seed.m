-- kvoracle: scope seed, the reference design.
--
-- one request, one group, two chunks of two tokens: the case of vLLM PR #52923.
--
-- Written by `kvoracle export murphi --scope seed` from the machine in model/; change that, not
-- this.
--
-- rumur --deadlock-detection off --output model.c FILE
--
-- cc -O3 -march=native -std=c11 -o model model.c -lpthread && ./model

type
  Request: 0..0;
  Life: enum { absent, waiting, running, preempted, finished, aborted };
  Tokens: 0..5;
  Group: 0..0;
  Chunks: 0..2;
  Blocks: 0..2;
  Chunk: 0..1;
  Mark: enum { never_offered, covered, held, spoiled };
  Accepted: 0..0;
  -- any number that is reckoned with
  Number: (0 - 6)..6;

var
  -- where the request stands
  life: array [Request] of Life;
  -- tokens of its prompt
  prompt: array [Request] of Tokens;
  -- tokens known: prompt and accepted output
  tokens: array [Request] of Tokens;
  -- tokens whose KV is written, those of the step in flight included, drafts not
  computed: array [Request] of Tokens;
  -- keys that have arrived
  keys: array [Request] of array [Group] of Chunks;
  -- blocks known to the planner
  blocks: array [Request] of array [Group] of Blocks;
  -- the next chunk to consider for storing
  cursor: array [Request] of array [Group] of Chunks;
  -- the pool refused the last offer, or was reset: chunks left over are not owed
  excused: array [Request] of boolean;
  -- covered: declined, or part of a hit; held: stored with its final KV; spoiled: stored, but the KV
  -- was not computed, or was rewritten later; history, for properties alone
  mark: array [Request] of array [Group] of array [Chunk] of Mark;
  -- keys that the last planned job named; history, for properties alone
  job_keys: array [Request] of array [Group] of Chunks;
  -- chunks' worth of blocks that it named; history, for properties alone
  job_blocks: array [Request] of array [Group] of Chunks;

function min(a: Number; b: Number): Number;
begin
  return a <= b ? a : b;
end;

function max(a: Number; b: Number): Number;
begin
  return a >= b ? a : b;
end;

-- tokens_per_chunk: 2 (tokens in one chunk of the group)

-- blocks_per_chunk: 1 (blocks in one chunk)

-- Whether the request has finished or was aborted, and is not forgotten yet.
function has_ended(r: Request): boolean;
begin
  return life[r] = finished | life[r] = aborted;
end;

-- Whether the planner looks at the request: it runs, or has ended and is not forgotten.
function planned_for(r: Request): boolean;
begin
  return life[r] = running | life[r] = finished | life[r] = aborted;
end;

-- Chunks whose KV is computed and final.
function by_tokens(r: Request; g: Group): Number;
begin
  return computed[r] / 2;
end;

-- Leading chunks that the design allows to store now.
function storable(r: Request; g: Group): Number;
begin
  return min(by_tokens(r, g), min(blocks[r][g], keys[r][g]));
end;

startstate
begin
  for r: Request do
    life[r] := absent;
  end;
  for r: Request do
    prompt[r] := 0;
  end;
  for r: Request do
    tokens[r] := 0;
  end;
  for r: Request do
    computed[r] := 0;
  end;
  for r: Request do
    for g: Group do
      keys[r][g] := 0;
    end;
  end;
  for r: Request do
    for g: Group do
      blocks[r][g] := 0;
    end;
  end;
  for r: Request do
    for g: Group do
      cursor[r][g] := 0;
    end;
  end;
  for r: Request do
    excused[r] := false;
  end;
  for r: Request do
    for g: Group do
      for c: Chunk do
        mark[r][g][c] := never_offered;
      end;
    end;
  end;
  for r: Request do
    for g: Group do
      job_keys[r][g] := 0;
    end;
  end;
  for r: Request do
    for g: Group do
      job_blocks[r][g] := 0;
    end;
  end;
end;

-- request r arrives, tokens in its prompt: p (done to the engine)
-- A request enters the queue; it has computed nothing.
ruleset r: Request; p: Tokens do
  rule "arrive"
    -- new
      life[r] = absent
    -- a prompt is not empty
    & 1 <= p
  ==>
  begin
    life[r] := waiting;
    prompt[r] := p;
    tokens[r] := p;
  end;
end;

-- request r starts, tokens in the GPU's prefix cache: n
-- Admission, for the first time or after preemption. The last token is always computed, since its
-- logits are needed (vLLM: a hit is capped at one token less than the request).
ruleset r: Request; n: Tokens do
  rule "start"
    -- waits
      (life[r] = waiting | life[r] = preempted)
    -- one token is left to compute
    & n < tokens[r]
  ==>
  begin
    life[r] := running;
    computed[r] := n;
  end;
end;

-- request r is computed, tokens so far: n
-- A step's kernels write the KV of known tokens: a piece of prefill, or one decoded token.
ruleset r: Request; n: Tokens do
  rule "compute"
    -- runs
      life[r] = running
    -- further than before
    & computed[r] < n
    -- known tokens only
    & n <= tokens[r]
  ==>
  begin
    computed[r] := n;
  end;
end;

-- request r samples a token, drafts accepted before it: a
-- The step's output becomes known. The KV of accepted drafts was written in this step.
ruleset r: Request; a: Accepted do
  rule "sample"
    -- runs
      life[r] = running
    -- everything known is computed
    & computed[r] = tokens[r]
    -- no drafts without a draft group
    & a = 0
    -- stays within the scope
    & tokens[r] + a + 1 <= 5
  ==>
  begin
    tokens[r] := tokens[r] + a + 1;
    computed[r] := computed[r] + a;
  end;
end;

-- request r is preempted
-- Its blocks are taken away; it will compute again from the start, or from a hit.
ruleset r: Request do
  rule "preempt"
    -- runs
      life[r] = running
    -- between steps
    & computed[r] < tokens[r]
  ==>
  var
    cursor_before: array [Request] of array [Group] of Chunks;
  begin
    cursor_before := cursor;
    life[r] := preempted;
    computed[r] := 0;
    for g: Group do
      blocks[r][g] := 0;
    end;
    for g: Group do
      cursor[r][g] := cursor_before[r][g];
    end;
    assert "MonotoneProgress"
      forall r2: Request do forall g: Group do cursor_before[r2][g] <= cursor[r2][g] end end;
  end;
end;

-- request r finishes
-- Its last token is sampled; that token's KV is never computed.
ruleset r: Request do
  rule "finish"
    -- runs
      life[r] = running
    -- has sampled
    & prompt[r] < tokens[r]
    -- only the last token is not computed
    & computed[r] + 1 = tokens[r]
  ==>
  begin
    life[r] := finished;
  end;
end;

-- the client of request r goes away (done to the engine)
-- It may have computed nothing, and have no block (vLLM issue #49118).
ruleset r: Request do
  rule "abort"
    -- lives
      (life[r] = waiting | life[r] = running | life[r] = preempted)
    -- between steps
    & computed[r] < tokens[r]
  ==>
  begin
    life[r] := aborted;
  end;
end;

-- the planner forgets request r
-- Nothing is owed to it any more; its name may be used again.
ruleset r: Request do
  rule "retire"
    -- ended
      has_ended(r)
    -- nothing storable is left, or not owed
    & (excused[r] | forall g: Group do storable(r, g) <= cursor[r][g] end)
  ==>
  begin
    life[r] := absent;
    prompt[r] := 0;
    tokens[r] := 0;
    computed[r] := 0;
    for g: Group do
      keys[r][g] := 0;
    end;
    for g: Group do
      blocks[r][g] := 0;
    end;
    for g: Group do
      cursor[r][g] := 0;
    end;
    excused[r] := false;
    for g: Group do
      for c: Chunk do
        mark[r][g][c] := never_offered;
      end;
    end;
    for g: Group do
      job_keys[r][g] := 0;
    end;
    for g: Group do
      job_blocks[r][g] := 0;
    end;
  end;
end;

-- keys of request r known in group g: n (done to the engine)
-- Keys exist for whole chunks of known tokens, and arrive when they do, even after the end.
ruleset r: Request; g: Group; n: Chunks do
  rule "keys_arrive"
    -- known
      life[r] != absent
    -- more than before
    & keys[r][g] < n
    -- a key names known tokens
    & n <= (tokens[r] / 2)
  ==>
  begin
    keys[r][g] := n;
  end;
end;

-- blocks of request r known in group g: n
-- The scheduler allocated blocks and told the planner; how far ahead is its own affair.
ruleset r: Request; g: Group; n: Blocks do
  rule "blocks_told"
    -- runs
      life[r] = running
    -- more than before
    & blocks[r][g] < n
  ==>
  begin
    blocks[r][g] := n;
  end;
end;

-- the planner offers request r's chunks below n in group g: chunk d declined
-- The pool takes the chunks from the cursor to `n`, but for chunk `d` which it holds already (`d`
-- = `n`: it declines none). The job names the keys and the blocks of those chunks, each cut out of
-- its own list.
ruleset r: Request; g: Group; n: Chunks; d: Chunks do
  rule "plan_store"
    -- planned for
      planned_for(r)
    -- beyond the cursor
    & cursor[r][g] < n
    -- storable
    & n <= storable(r, g)
    -- declines an offered chunk or none
    & (cursor[r][g] <= d & d <= n)
  ==>
  var
    cursor_before: array [Request] of array [Group] of Chunks;
  begin
    cursor_before := cursor;
    for c: Chunk do
      if cursor_before[r][g] <= c & c < n then
        mark[r][g][c] := c = d
                         ? (mark[r][g][c] = never_offered ? covered : mark[r][g][c])
                         : (c < (computed[r] / 2) ? held : spoiled);
      end;
    end;
    job_keys[r][g] := min(keys[r][g], n) - min(keys[r][g], cursor_before[r][g]);
    job_blocks[r][g] := min(blocks[r][g], n) - min(blocks[r][g], cursor_before[r][g]);
    cursor[r][g] := max(cursor_before[r][g], n);
    excused[r] := false;
    assert "MonotoneProgress"
      forall r2: Request do forall g2: Group do cursor_before[r2][g2] <= cursor[r2][g2] end end;
  end;
end;

-- the host pool refuses the offer of request r
-- No room: nothing is stored. The offer is made again while the request is tracked.
ruleset r: Request do
  rule "refuse"
    -- planned for
      planned_for(r)
    -- something to offer
    & exists g: Group do cursor[r][g] < storable(r, g) end
  ==>
  var
    cursor_before: array [Request] of array [Group] of Chunks;
  begin
    cursor_before := cursor;
    excused[r] := true;
    for g: Group do
      cursor[r][g] := cursor_before[r][g];
    end;
    assert "MonotoneProgress"
      forall r2: Request do forall g: Group do cursor_before[r2][g] <= cursor[r2][g] end end;
  end;
end;

-- the planner passes over request r in group g
-- Nothing new to offer; the cursor is derived again all the same.
ruleset r: Request; g: Group do
  rule "settle"
    -- planned for
      planned_for(r)
    -- nothing to offer
    & storable(r, g) <= cursor[r][g]
  ==>
  var
    cursor_before: array [Request] of array [Group] of Chunks;
  begin
    cursor_before := cursor;
    cursor[r][g] := max(cursor_before[r][g], storable(r, g));
    assert "MonotoneProgress"
      forall r2: Request do forall g2: Group do cursor_before[r2][g2] <= cursor[r2][g2] end end;
  end;
end;

-- the host pool is reset (done to the engine)
-- The host holds nothing any more, so everything is considered again; what had already ended is
-- owed nothing (vLLM: `reset_cache` drops finished requests).
rule "reset"
  true
==>
begin
  for r: Request do
    for g: Group do
      cursor[r][g] := 0;
    end;
  end;
  for r: Request do
    for g: Group do
      for c: Chunk do
        mark[r][g][c] := never_offered;
      end;
    end;
  end;
  for r: Request do
    for g: Group do
      job_keys[r][g] := 0;
    end;
  end;
  for r: Request do
    for g: Group do
      job_blocks[r][g] := 0;
    end;
  end;
  for r: Request do
    if life[r] != absent then
      excused[r] := has_ended(r);
    end;
  end;
end;

-- a planned job has exactly one key per chunk and exactly that chunk's blocks
invariant "KeysEqBlocks"
  forall r: Request do forall g: Group do job_keys[r][g] = job_blocks[r][g] end end;

-- nothing is stored before its key exists
invariant "KeyedOnly"
  forall r: Request do forall g: Group do forall c: Chunk do
      (mark[r][g][c] = held | mark[r][g][c] = spoiled) -> c < keys[r][g]
  end end end;

-- a chunk behind the cursor was offered, is covered by a hit, or was never storable
invariant "NoHole"
  forall r: Request do forall g: Group do forall c: Chunk do
      c < cursor[r][g] -> mark[r][g][c] != never_offered
  end end end;

-- no chunk is stored whose KV can still change or was never (wholly) computed
invariant "NoVolatileStore"
  forall r: Request do forall g: Group do forall c: Chunk do mark[r][g][c] != spoiled end end end;

-- at rest, with keys arrived and room in the pool, nothing storable is left
invariant "EventuallyStored"
  forall r: Request do forall g: Group do
      (  planned_for(r)
       & !(  (  planned_for(r)
              & cursor[r][g] < cursor[r][g] + 1
              & cursor[r][g] + 1 <= storable(r, g)
              & cursor[r][g] <= cursor[r][g] + 1
              & cursor[r][g] + 1 <= cursor[r][g] + 1)
           | (  planned_for(r)
              & cursor[r][g] < cursor[r][g] + 1
              & cursor[r][g] + 1 <= storable(r, g)
              & cursor[r][g] <= cursor[r][g]
              & cursor[r][g] <= cursor[r][g] + 1)))
        -> storable(r, g) <= cursor[r][g]
  end end;
