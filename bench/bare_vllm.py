"""vLLM's headless engine with nothing watched: what `bench/oracle.py` compares with.

Runs in the engine's own interpreter, like the child that it is made of.  Reads runs as lines of
JSON (``{"config": ..., "stimuli": [...]}``), answers each with the scheduler steps made and the
seconds that they took, building aside.  No content, no observation, no line for each stimulus: the
release's scheduler, connector, host pool and model-runner mixin, and the tokens they ask for.
"""

import importlib
import importlib.util
import json
import sys
import time
import traceback


def child(folder):
    """The child's package, as its own ``__main__`` makes it."""
    spec = importlib.util.spec_from_file_location(
        "kvoracle_vllm_child", folder + "/__init__.py", submodule_search_locations=[folder])
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
    return spec.name


def main():
    package = child(sys.argv[1])
    serve = importlib.import_module(package + ".serve")
    out = serve.set_aside_stdout()
    session = importlib.import_module(package + ".session").Session()
    run_of = importlib.import_module(package + ".run").Run
    worker_of = importlib.import_module(package + ".worker").Worker
    nothing = lambda *_, **__: None  # noqa: E731

    def forward(self, output, starts):
        """Sample without a kernel."""
        sampled = []
        for name, count in output.num_scheduled_tokens.items():
            text, known = self.texts[name], self.known[name]
            drafts = output.scheduled_spec_decode_tokens.get(name, ())
            if starts[name] + count < known:
                sampled.append([])
                continue
            accepted = 0
            while accepted < len(drafts) and drafts[accepted] == text.token(known + accepted):
                accepted += 1
            sampled.append([text.token(known + i) for i in range(accepted + 1)])
        return sampled

    def ended(self, output, result):
        """Requests that have ended; the harness speaks of none of them any more."""
        for name in list(output.num_scheduled_tokens):
            watched = self.open.get(name)
            if watched is not None and watched.request.is_finished():
                watched.finished = True
                del self.open[name]

    def forget(self):
        known = self.release.known(self.planner.inner)
        for name in [n for n, w in self.planner.watched.items() if w.finished and n not in known]:
            del self.planner.watched[name]
            self.texts[name].forget()

    def scheduled(self, output, *_):
        """Whoever waits has all its keys: that is the contract, watched or not."""
        for name in self.release.preempted(output, ()):
            if name in self.planner.watched:
                self._release_keys(self.planner.watched[name])

    run_of._tell_scheduled = scheduled
    for name in ("emit", "_tell_stored", "_tell_pins", "_tell_rest"):
        setattr(run_of, name, nothing)
    run_of._tell_sampled = ended
    run_of._retire = forget
    run_of._planned = lambda *_: 0
    run_of._describe = nothing
    worker_of._forward = forward
    worker_of._draft = worker_of._read = nothing

    steps = 0
    step = run_of._step

    def counted(self, *arguments):
        nonlocal steps
        steps += 1
        step(self, *arguments)

    run_of._step = counted
    for line in sys.stdin:
        ask = json.loads(line)
        answer = {}
        try:
            session.start({"config": ask["config"]})
            run = session.run
            connector = run.scheduler.connector
            connector.get_num_new_matched_tokens = run._lookup
            memory = run.workers[0].memory
            memory.run = nothing
            steps, begun = 0, time.perf_counter()
            for stimulus in ask["stimuli"]:
                run.offers.made.clear()
                run.do(stimulus)
            answer = {"steps": steps, "seconds": time.perf_counter() - begun}
        except serve.BadInput as refused:
            answer = {"refused": str(refused)}
        except Exception as error:  # the engine's own end: both sides see it
            traceback.print_exc()
            answer = {"died": type(error).__name__, "steps": steps,
                      "seconds": time.perf_counter() - begun}
        out.write(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
