"""How is an engine in another process talked to?  One child, one line out, one line back.

Whatever goes wrong with the child becomes a ``died`` observation, since it is a finding
about the engine and not a failure of the oracle: it vanished, it hung, or it wrote
something that is not an answer.  The child is always reaped.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import IO

import msgspec

from kvoracle.oracle import events
from kvoracle.oracle.engines.protocol import BadStimulus

ANSWER_TIMEOUT = 60.0
"""Seconds for one answer: a drain of thousands of steps on a busy machine is well below."""
START_TIMEOUT = 300.0
"""Seconds for the answer to ``start``: importing vLLM takes 10 s, several at once far more."""
STDERR_TAIL = 4000
"""Characters of standard error kept as evidence."""
GRACE = 5.0
"""Seconds a child may take to leave by itself when asked to stop."""


class EngineError(Exception):
    """Base of what can go wrong between the oracle and an engine process."""


class EngineNotFound(EngineError):
    """The child's program could not be started."""


class EngineRefused(EngineError, BadStimulus):
    """The engine said that what it was asked makes no sense (bad input, not a finding)."""


class EngineGone(EngineError):
    """A stimulus was given to an engine that is not running or has died."""


class _Answer(msgspec.Struct):
    saw: tuple[events.AnyObservation, ...] | None = None
    error: str | None = None


_decoder = msgspec.json.Decoder(_Answer)
_living: weakref.WeakSet[EngineProcess] = weakref.WeakSet()


class _Failed(Exception):
    """Inside this module: the child is of no more use; carries the observation."""

    def __init__(self, died: events.Died) -> None:
        super().__init__(died.error)
        self.died = died


class EngineProcess:
    """An engine in a child process; a context manager.

    ``start`` may be called any number of times, also after the engine died: the process is
    made anew if it has to be.  ``hello`` is what the engine last said of itself.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None, *,
                 cwd: str | None = None, answer_timeout: float = ANSWER_TIMEOUT,
                 start_timeout: float = START_TIMEOUT) -> None:
        self.argv = tuple(argv)
        self.env = dict(env) if env is not None else None
        self.cwd = cwd
        self.answer_timeout = answer_timeout
        self.start_timeout = start_timeout
        self.hello: events.Hello | None = None
        self.died: events.Died | None = None
        self._started = False
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._buffer = bytearray()
        self._unsent = bytearray()

    # --- what callers use --------------------------------------------------------

    def start(self, config: events.Config) -> tuple[events.AnyObservation, ...]:
        """Build a fresh engine.

        Returns what was seen: ``hello``, or ``died`` if the process failed.  Raises
        :class:`EngineRefused` if the engine does not support the config, and
        :class:`EngineNotFound` if there is no such program.
        """
        self.died = None
        self._started = False
        line = msgspec.json.encode({"do": "start", "config": config})
        if self._process is None or self._process.poll() is not None:
            self._spawn()
        seen = self._ask([line], self.start_timeout)[0]
        for event in seen:
            if isinstance(event, events.Hello):
                self.hello = event
        self._started = self.died is None
        return seen

    def send(self, stimulus: events.AnyStimulus,
            timeout: float | None = None) -> tuple[events.AnyObservation, ...]:
        """Give one stimulus and return what was then seen."""
        return self.send_all([stimulus], timeout)[0]

    def send_all(self, stimuli: Iterable[events.AnyStimulus], timeout: float | None = None
                 ) -> list[tuple[events.AnyObservation, ...]]:
        """Give several, and return what was seen for each.

        They are sent ahead of their answers, which saves the waiting between two processes.
        The list ends early at the answer with ``died``.  ``timeout`` is for each answer.
        """
        if self.died is not None:
            raise EngineGone(f"the engine died ({self.died.error}): start it again")
        if not self._started:
            raise EngineGone("no engine is running: start it first")
        lines = [events.encode(stimulus).encode() for stimulus in stimuli]
        limit = self.answer_timeout if timeout is None else timeout
        return self._ask(lines, limit)

    def close(self) -> None:
        """Ask the child to leave, and make it."""
        process = self._process
        if process is not None and process.poll() is None and process.stdin is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                os.write(process.stdin.fileno(), b'{"do":"stop"}\n')
                process.stdin.close()
                process.wait(GRACE)
        self._reap()

    @property
    def pid(self) -> int | None:
        """The child's process id, if it runs."""
        return self._process.pid if self._process is not None else None

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    # --- the child -----------------------------------------------------------------

    def _spawn(self) -> None:
        self._reap()
        # A file and not a pipe: nobody has to drain it, and only its end is ever read.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        self._buffer.clear()
        self._unsent.clear()
        try:
            self._process = subprocess.Popen(
                self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
                env=self.env, cwd=self.cwd, bufsize=0, start_new_session=True,
            )
        except OSError as error:
            self._stderr.close()
            self._stderr = None
            raise EngineNotFound(f"cannot start {self.argv[0]}: {error.strerror}") from error
        assert self._process.stdin is not None
        # Lines are sent while answers are read: neither side may wait for the other's pipe.
        os.set_blocking(self._process.stdin.fileno(), False)
        _living.add(self)

    def _reap(self) -> None:
        """End the child and everything it started, and leave no zombie."""
        process = self._process
        if process is not None:
            # The child leads a session of its own, so its helpers go with it.
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._process = None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None
        self._started = False
        _living.discard(self)

    # --- lines ---------------------------------------------------------------------

    def _ask(self, lines: Sequence[bytes], timeout: float
             ) -> list[tuple[events.AnyObservation, ...]]:
        """Send lines and read an answer to each, or until one shows that the engine died."""
        answers: list[tuple[events.AnyObservation, ...]] = []
        refused: EngineRefused | None = None
        try:
            for line in lines:
                self._unsent += line + b"\n"
            for line in lines:
                answer = self._decode(self._read_line(line, timeout), line)
                if self.died is not None:
                    # The lines sent ahead are answered with errors; they were never judged.
                    continue
                if answer.error is not None:
                    refused = refused or EngineRefused(answer.error)
                    answers.append(())
                    continue
                seen = answer.saw or ()
                answers.append(seen)
                if seen and isinstance(seen[-1], events.Died):
                    self.died = self._with_stderr(seen[-1])
                    answers[-1] = (*seen[:-1], self.died)
        except _Failed as failure:
            self.died = failure.died
            self._reap()
            answers.append((failure.died,))
        if refused is not None:
            raise refused
        return answers

    def _send(self, stdin: int) -> None:
        """Send what the pipe takes now."""
        try:
            del self._unsent[:os.write(stdin, self._unsent[:1 << 16])]
        except BlockingIOError:
            return
        except OSError:
            # It is gone; reading says how.
            self._unsent.clear()

    def _read_line(self, asked: bytes, timeout: float) -> bytes:
        process = self._process
        assert process is not None and process.stdout is not None and process.stdin is not None
        stdout, stdin = process.stdout.fileno(), process.stdin.fileno()
        deadline = time.monotonic() + timeout
        searched = 0
        while True:
            if self._unsent:
                self._send(stdin)
            end = self._buffer.find(b"\n", searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[:end + 1]
                return line
            searched = len(self._buffer)
            left = max(0.0, deadline - time.monotonic())
            readable, writable, _ = select.select(
                [stdout], [stdin] if self._unsent else [], [], left)
            if not readable and not writable:
                raise _Failed(self._evidence(
                    "hung", f"no answer within {timeout:g} s to {_short(asked)}"))
            if not readable:
                continue
            data = os.read(stdout, 1 << 16)
            if not data:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
                raise _Failed(self._evidence(
                    "vanished", f"{_ended(process.returncode)} while answering {_short(asked)}"))
            self._buffer += data

    def _decode(self, line: bytes, asked: bytes) -> _Answer:
        try:
            answer = _decoder.decode(line)
        except msgspec.DecodeError as error:
            raise _Failed(self._evidence(
                "garbage", f"answered {_short(asked)} with {_short(line)}: {error}")) from error
        if answer.saw is None and answer.error is None:
            raise _Failed(self._evidence(
                "garbage", f"answered {_short(asked)} with neither saw nor error: "
                           f"{_short(line)}"))
        return answer

    # --- evidence --------------------------------------------------------------------

    def stderr_tail(self) -> str:
        """The end of what the child has written to standard error."""
        if self._stderr is None:
            return ""
        with contextlib.suppress(OSError, ValueError):
            # pread: the child shares the file's offset, which must not move.
            fd = self._stderr.fileno()
            size = os.fstat(fd).st_size
            raw = os.pread(fd, STDERR_TAIL, max(0, size - STDERR_TAIL))
            return raw.decode("utf-8", "replace")
        return ""

    def _evidence(self, error: str, message: str) -> events.Died:
        return events.Died(error=error, message=message, stderr=self.stderr_tail())

    def _with_stderr(self, died: events.Died) -> events.Died:
        return died if died.stderr else msgspec.structs.replace(died, stderr=self.stderr_tail())


def _ended(code: int | None) -> str:
    """Words for a return code."""
    if code is None:
        return "closed its standard output"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"
    return f"exited with code {code}"


def _short(line: bytes, limit: int = 200) -> str:
    text = line.decode("utf-8", "replace")
    return text if len(text) <= limit else text[:limit] + "..."


@atexit.register
def _end_all() -> None:
    for engine in list(_living):
        engine._reap()
