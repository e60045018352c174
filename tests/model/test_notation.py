"""Does the notation refuse what no reading could give a meaning to, and show the rest?"""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from kvoracle.model.machine import Machine, Part, View, invariant, step
from kvoracle.model.rules import REFERENCE
from kvoracle.model.run import Program
from kvoracle.model.scopes import ALL_PARTS, CORE, TRANSFER_PARTS
from kvoracle.model.terms import (
    BOOL,
    FALSE,
    TRUE,
    Bound,
    Literal,
    NotationError,
    Quantified,
    Read,
    Sort,
    Term,
    conjunction,
    disjunction,
    enumeration,
    exists,
    forall,
    implies,
    ite,
    lift,
    maximum,
    mentions,
    minimum,
    not_,
    show,
)

THING = Sort("Thing", symmetric=True)
PLACE = Sort("Place")
COUNT = Sort("Count")
COLOUR = enumeration("Colour", "red", "green")
Thing = Annotated[Term, THING]
Place = Annotated[Term, PLACE]
Count = Annotated[Term, COUNT]

X, Y = Bound("x", COUNT), Bound("y", COUNT)


def toy() -> Part:
    part = Part("toy", "two variables and their kin")
    part.variable("level", (THING,), COUNT, "a number")
    part.variable("at", (THING, PLACE), COUNT, "a number a place")
    part.variable("colour", (THING,), COLOUR, "an enumeration")
    part.variable("lit", (THING,), BOOL, "a truth")
    part.ghost("seen", (THING,), COUNT, "a ghost")
    part.constant("width", (PLACE,), COUNT, "a constant", initial=1)
    part.constant("depth", (PLACE,), COUNT, "a constant that may be 0")
    return part


def machine(*functions: Any, part: Part | None = None) -> Machine:
    part = part or toy()
    for function in functions:
        part.action("{r}")(function)
    return Machine((part,), None)


# --- terms ---------------------------------------------------------------------------


@pytest.mark.parametrize("misuse", [
    lambda: bool(X < Y),
    lambda: (X < 1) and (Y < 1),
    lambda: (X < 1) or (Y < 1),
    lambda: not (X < 1),
    lambda: 1 if X == Y else 2,
    lambda: 0 <= X <= 3,
    lambda: X in (Y, X),
    lambda: max(X, Y),
], ids=["bool", "and", "or", "not", "if", "chained", "in", "max"])
def test_a_term_has_no_truth_value(misuse: Any) -> None:
    with pytest.raises(NotationError, match="no truth value"):
        misuse()


def test_what_is_no_number_is_no_term() -> None:
    with pytest.raises(NotationError, match="neither a term nor a number"):
        lift("1")
    with pytest.raises(NotationError, match="neither a term nor a number"):
        ite(X < Y, 1, 1.5)  # type: ignore[arg-type]


def test_the_words_take_plain_numbers() -> None:
    assert ite(True, 1, 2) == 1 and ite(False, 1, 2) == 2
    assert minimum(3, 1, 2) == 1 and maximum(3, 1, 2) == 3
    assert not_(True) is False and not_(0) is True
    truths = (False, True)
    assert [implies(p, c) for p in truths for c in truths] == [True, True, False, True]


def test_joining_nothing_or_one() -> None:
    assert conjunction(()) is TRUE and disjunction(()) is FALSE
    one = X < Y
    assert conjunction((True, one)) is one and disjunction((one, False)) is one


def test_joins_are_flat() -> None:
    a, b, c = X < 1, X < 2, X < 3
    assert [show(t) for t in (a & (b & c)).args] == ["x < 1", "x < 2", "x < 3"]  # type: ignore[attr-defined]
    assert [show(t) for t in ((a | b) | c).args] == ["x < 1", "x < 2", "x < 3"]  # type: ignore[attr-defined]


def test_a_quantifier_takes_one_variable_a_sort() -> None:
    with pytest.raises(NotationError, match="Thing, Place takes 1 parameters, not 2"):
        forall(THING, PLACE, lambda t: True)


# --- showing -------------------------------------------------------------------------


def _shown(write: Any) -> str:
    part = toy()
    made = machine(part=part)
    return show(invariant(made, "shown", write).term)


@pytest.mark.parametrize(("write", "text"), [
    (lambda s: (X + 1 < Y - 2) & not_(X == Y), "x + 1 < y - 2 and not (x = y)"),
    (lambda s: implies((X < 1) | (Y < 1), X != Y), "x < 1 or y < 1 implies x != y"),
    (lambda s: minimum(X, 2) == maximum(Y, 3, X), "min(x, 2) = max(y, 3, x)"),
    (lambda s: ite(X < Y, X + 1, 0) == 0, "(x + 1 if x < y else 0) = 0"),
    (lambda s: forall(THING, lambda t: s.colour[t] == 1),
     "(for all t: Thing: colour[t] = green)"),
    (lambda s: exists(THING, PLACE, lambda t, p: s.at[t, p] // s.width[p] >= 1),
     "(some t: Thing, p: Place: 1 <= at[t, p] // width[p])"),
    (lambda s: forall(THING, lambda t: exists(THING, lambda u: s.level[t] < s.level[u])),
     "(for all t: Thing: (some u: Thing: level[t] < level[u]))"),
    (lambda s: forall(THING, lambda t: s.lit[t] == 1), "(for all t: Thing: lit[t] = yes)"),
    (lambda s: lift(True), "true"),
    (lambda s: ((X < 1) & (Y < 1)) | (X < Y), "(x < 1 and y < 1) or x < y"),
    (lambda s: X - (Y - 1) == (X - Y) - 1, "x - (y - 1) = (x - y) - 1"),
    (lambda s: (X + 1) // 2 == X // 2 + 1, "(x + 1) // 2 = x // 2 + 1"),
    (lambda s: implies(implies(X < 1, Y < 1), X < Y), "(x < 1 implies y < 1) implies x < y"),
])
def test_terms_are_shown_in_words_and_signs(write: Any, text: str) -> None:
    assert _shown(write) == text


def test_the_state_behind_a_step_is_marked() -> None:
    predicate = step(machine(), "grows", _grows, "any")
    assert show(predicate.term) == "level[r] <= level'[r]"


def _grows(s: View, t: View, action: str, r: Thing) -> Term:
    return s.level[r] <= t.level[r]


def test_the_guard_of_a_store_reads_as_the_rule() -> None:
    guard = Machine(CORE, REFERENCE).actions["plan_store"].requirements
    assert [(r.name, show(r.term)) for r in guard] == [
        ("planned for", "life[r] = running or life[r] = finished or life[r] = aborted"),
        ("beyond the cursor", "cursor[r, g] < n"),
        ("storable",
         "n <= min((max(computed[r] // tokens_per_chunk[g] - 1, 0) "
         "if false and prompt[r] < computed[r] and not (life[r] = finished or life[r] = aborted) "
         "else computed[r] // tokens_per_chunk[g]), "
         "blocks[r, g] // blocks_per_chunk[g], keys[r, g])"),
        ("declines an offered chunk or none", "cursor[r, g] <= d and d <= n"),
    ]


# --- machines ------------------------------------------------------------------------


def test_an_unknown_variable_is_named() -> None:
    def act(s: View, r: Thing) -> None:
        s.levle[r] = 1

    with pytest.raises(NotationError, match="no variable 'levle' in the parts toy"):
        machine(act)


def test_an_assignment_without_index_does_not_pass_unnoticed() -> None:
    def act(s: View, r: Thing) -> None:
        s.level = 1  # type: ignore[assignment]

    with pytest.raises(AttributeError, match="level"):
        machine(act)


@pytest.mark.parametrize("touch", [
    lambda s, r: s.require("x", s.at[r] == 0),
    lambda s, r: s.level.__setitem__((r, 0), 1),
    lambda s, r: s.at.where(lambda t: True, 0),
    lambda s, r: s.at.where(lambda t, p: True, lambda t: 0),
], ids=["read", "write", "where", "where-value"])
def test_the_wrong_number_of_indices(touch: Any) -> None:
    def act(s: View, r: Thing) -> None:
        touch(s, r)

    with pytest.raises((NotationError, TypeError), match=r"has \d indices|takes \d|positional"):
        machine(act)


def test_a_guard_may_not_read_a_ghost() -> None:
    def act(s: View, r: Thing) -> None:
        s.require("fine", s.level[r] == 0)
        s.require("haunted", exists(PLACE, lambda p: s.seen[r] < s.at[r, p]))

    with pytest.raises(NotationError, match="act: the guard 'haunted' reads a ghost"):
        machine(act)


@pytest.mark.parametrize("change", [
    lambda s, r: s.level.__setitem__(r, s.seen[r]),
    lambda s, r: s.at.__setitem__((r, s.seen[r]), 0),
    lambda s, r: s.level.where(lambda t: s.seen[t] == 1, 0),
    lambda s, r: s.level.where(lambda t: t == r, lambda t: s.seen[t]),
], ids=["value", "index", "condition", "bulk-value"])
def test_what_is_no_ghost_may_not_be_made_from_one(change: Any) -> None:
    def act(s: View, r: Thing) -> None:
        change(s, r)

    with pytest.raises(NotationError, match="reads a ghost"):
        machine(act)


def test_a_ghost_may_be_made_from_anything() -> None:
    def act(s: View, r: Thing) -> None:
        s.seen[r] = s.seen[r] + s.level[r]

    assert len(machine(act).actions["act"].updates) == 1


def test_a_constant_may_not_change() -> None:
    def act(s: View, p: Place) -> None:
        s.width[p] = 2

    with pytest.raises(NotationError, match="width is a constant"):
        machine(act)


def test_names_are_declared_once() -> None:
    def act(s: View, r: Thing) -> None: ...

    part = toy()
    part.action("{r}")(act)
    with pytest.raises(NotationError, match="action 'act' is declared twice"):
        part.action("{r}")(act)
    other = Part("other", "")
    other.action("{r}")(act)
    with pytest.raises(NotationError, match="action 'act' is declared twice"):
        Machine((part, other), None)
    with pytest.raises(NotationError, match="variable 'level' is declared twice"):
        Machine((toy(), toy()), None)


def test_a_variable_may_not_hide_a_word_of_the_view() -> None:
    part = Part("p", "")
    part.variable("updates", (THING,), COUNT, "")
    with pytest.raises(NotationError, match="'updates' already"):
        Machine((part,), None)


def test_what_is_extended_or_overridden_exists() -> None:
    def act(s: View, r: Thing) -> None: ...

    part = toy()
    part.extend("atc")(act)
    with pytest.raises(NotationError, match="part 'toy': no action 'atc' to extend"):
        Machine((part,), None)
    with pytest.raises(NotationError, match="no action atc to override"):
        Machine((toy(),), None, {"atc": act})


def test_an_extension_takes_the_parameters_of_the_action() -> None:
    def act(s: View, r: Thing) -> None: ...
    def more(s: View, p: Place) -> None: ...

    part = toy()
    part.action("{r}")(act)
    part.extend("act")(more)
    with pytest.raises(NotationError, match="act: more takes other parameters"):
        Machine((part,), None)


def test_an_extension_may_add_parameters() -> None:
    def act(s: View, r: Thing, n: Count) -> None:
        s.level[r] = n

    def more(s: View, r: Thing, n: Count, p: Place) -> None:
        s.require("known", n < 3)
        s.at[r, p] = n

    def twice(s: View, r: Thing, n: Count, p: Place) -> None: ...

    part, other = toy(), Part("other", "")
    part.action("{r} by {n}")(act)
    other.extend("act", ", at {p}")(more)
    assert Machine((part,), None).actions["act"].describe({"r": 1, "n": 2}) == "1 by 2"
    made = Machine((part, other), None).actions["act"]
    assert [p.name for p in made.parameters] == ["r", "p", "n"]  # what before how much
    assert made.describe({"r": 1, "n": 2, "p": 0}) == "1 by 2, at 0"
    assert [r.name for r in made.requirements] == ["known"] and len(made.updates) == 2
    other.extend("act")(twice)
    with pytest.raises(NotationError, match="act: two extensions add a parameter p"):
        Machine((part, other), None)


def test_an_extension_speaks_after_an_action_that_speaks_for_itself() -> None:
    def act(s: View, r: Thing) -> None: ...
    def more(s: View, r: Thing, p: Place) -> None: ...

    part, other = toy(), Part("other", "")
    part.action(lambda shown: f"<{shown['r']}>")(act)
    other.extend("act", " at {p}")(more)
    assert Machine((part, other), None).actions["act"].describe({"r": 1, "p": 2}) == "<1> at 2"


def test_a_machine_may_leave_actions_out() -> None:
    def act(s: View, r: Thing) -> None: ...
    def other(s: View, r: Thing) -> None: ...

    part = toy()
    part.action("{r}")(act)
    part.action("{r}")(other)
    assert list(Machine((part,), None, without=("act",)).actions) == ["other"]
    with pytest.raises(NotationError, match="no action 'cat' to leave out"):
        Machine((part,), None, without=("cat",))


def test_extensions_add_and_overrides_replace() -> None:
    def act(s: View, r: Thing) -> None:
        """First."""
        s.require("low", s.level[r] < 1)

    def more(s: View, r: Thing) -> None:
        s.require("red", s.colour[r] == 0)
        s.level[r] = 1

    def other(s: View, r: Thing) -> None:
        s.require("high", s.level[r] > 1)

    part = toy()
    part.action("{r}")(act)
    part.extend("act")(more)
    plain = Machine((part,), None).actions["act"]
    assert [r.name for r in plain.requirements] == ["low", "red"]
    assert len(plain.updates) == 1 and plain.doc == "First."
    replaced = Machine((part,), None, {"act": other}).actions["act"]
    assert [r.name for r in replaced.requirements] == ["high", "red"]
    assert replaced.doc == "First."


def test_a_parameter_names_its_sort() -> None:
    def act(s: View, r) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(NotationError, match="act: parameter r names no sort"):
        machine(act)


def test_parameters_that_index_come_first() -> None:
    def act(s: View, n: Count, r: Thing) -> None: ...

    with pytest.raises(NotationError, match="act: say what it happens to before how much"):
        machine(act)


@pytest.mark.parametrize("divisor", [
    lambda s, r: s.level[r], lambda s, r: s.depth[0], lambda s, r: lift(0), lambda s, r: X,
], ids=["state", "constant-0", "literal-0", "parameter"])
def test_a_divisor_is_never_0(divisor: Any) -> None:
    def act(s: View, r: Thing) -> None:
        s.level[r] = s.level[r] // divisor(s, r)

    with pytest.raises(NotationError, match="a divisor must be a constant"):
        machine(act)


@pytest.mark.parametrize("use", [
    lambda s, r, n: r < 1,
    lambda s, r, n: r + 1 == n,
    lambda s, r, n: r == 0,
    lambda s, r, n: r == n,
    lambda s, r, n: minimum(r, r) == r,
    lambda s, r, n: s.level[n] == 0,
    lambda s, r, n: s.level[0] == 0,
    lambda s, r, n: s.at[r, r] == 0,
], ids=["order", "sum", "number", "count", "min", "index", "literal", "place"])
def test_things_of_a_symmetric_sort_are_only_compared(use: Any) -> None:
    def act(s: View, r: Thing, n: Count) -> None:
        s.require("x", use(s, r, n))

    with pytest.raises(NotationError, match=r"symmetric sort|is indexed by"):
        machine(act)


def test_a_constant_has_one_index() -> None:
    with pytest.raises(NotationError, match="'x': exactly one index"):
        Part("p", "").constant("x", (THING, PLACE), COUNT, "")


# --- asking whether an action is possible ------------------------------------------------


def _toy_with_rise() -> Machine:
    def rise(s: View, r: Thing, n: Count) -> None:
        s.require("higher", s.level[r] < n, n <= s.at[r, s.level[r]])
        s.level[r] = n

    return machine(rise)


def test_possible_is_the_guard_for_some_choice() -> None:
    made = _toy_with_rise()
    term = View(made).possible("rise", r=Literal(0))
    assert show(term) == "(some n: Count: level[0] < n and n <= at[0, level[0]])"
    assert show(View(made).possible("rise", r=X, n=Y)) == "level[x] < y and y <= at[x, level[x]]"


def test_possible_behind_a_step_reads_the_state_behind_it() -> None:
    term = View(_toy_with_rise(), after=True).possible("rise", r=X)
    assert show(term) == "(some n: Count: level'[x] < n and n <= at'[x, level'[x]])"
    assert not mentions(term, lambda t: isinstance(t, Read) and not t.after)


def test_possible_of_an_unknown_action() -> None:
    with pytest.raises(NotationError, match="no action 'fall'"):
        View(_toy_with_rise()).possible("fall", r=X)
    with pytest.raises(NotationError, match="no action 'rise' with parameters r, m "):
        View(_toy_with_rise()).possible("rise", r=X, m=Y)


# --- the run reading's own demand ----------------------------------------------------------


def test_the_run_reading_needs_an_end_to_every_range() -> None:
    def act(s: View, r: Thing) -> None:
        s.require("some number", exists(COUNT, lambda n: s.level[r] < n))

    with pytest.raises(NotationError, match="Count has no end, and nothing limits a range"):
        Program(machine(act))


def test_the_run_reading_knows_the_end_of_an_enumeration() -> None:
    def act(s: View, r: Thing) -> None:
        s.require("some colour", exists(COLOUR, lambda c: s.colour[r] != c))
        s.require("some truth", exists(BOOL, lambda b: s.lit[r] != b))

    assert "act" in Program(machine(act)).guards


# --- the machine as it is ----------------------------------------------------------------


def test_every_action_says_itself_in_words() -> None:
    made = Machine(ALL_PARTS, REFERENCE)
    assert made.actions["compute"].describe({"r": 1, "n": 4}) == \
        "request 1 is computed, tokens so far: 4"
    moved = Machine(TRANSFER_PARTS, REFERENCE)
    assert moved.actions["arrive"].describe({"r": 1, "p": 4, "t": 2}) == \
        "request 1 arrives, tokens in its prompt: 4, its text: 2"
    for action in (*made.actions.values(), *moved.actions.values()):
        text = action.describe({p.name: 1 for p in action.parameters})
        assert text and "{" not in text
        assert action.doc, f"{action.name} does not say why and when"


def test_a_store_names_the_declined_chunk() -> None:
    describe = Machine(ALL_PARTS, REFERENCE).actions["plan_store"].describe
    offer = "the planner offers request 0's chunks below 2 in group 1: "
    assert describe({"r": 0, "g": 1, "n": 2, "d": 1}) == offer + "chunk 1 declined"
    assert describe({"r": 0, "g": 1, "n": 2, "d": 2}) == offer + "all taken"


def test_every_variable_is_documented() -> None:
    for variable in (v for parts in (ALL_PARTS, TRANSFER_PARTS)
                     for v in Machine(parts, REFERENCE).variables.values()):
        assert variable.doc, variable.name


def test_quantified_variables_are_their_own() -> None:
    first = forall(THING, lambda t: t == t)
    second = forall(THING, lambda t: t == t)
    assert isinstance(first, Quantified) and isinstance(second, Quantified)
    assert first.bounds[0] is not second.bounds[0]
