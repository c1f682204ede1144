"""Nothing that is wrong gets in: every reply is checked before it touches the model, and a reason is given."""

import io
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adelfl.errors import ConfigError
from adelfl.updates import NormGuard, Reason, Shape, UpdateRejected, add_weighted, admit, read_array

LAYERS = (("a.weight", "a.bias"), ("b.weight",), ("c.weight", "c.bias"))
WEIGHTS = {
    "a.weight": np.zeros((4, 3), np.float32),
    "a.bias": np.zeros(4, np.float32),
    "b.weight": np.zeros((4, 4), np.float32),
    "c.weight": np.zeros((2, 4), np.float32),
    "c.bias": np.zeros(2, np.float32),
    "statistics": np.zeros(7, np.float32),  # a buffer: no layer has it
}
SHAPE = Shape.of(WEIGHTS, LAYERS)


def suffix(depth, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return {
        name: (scale * rng.standard_normal(WEIGHTS[name].shape)).astype(np.float32)
        for layer in LAYERS[3 - depth :]
        for name in layer
    }


def saved(array, **more):
    stream = io.BytesIO()
    np.save(stream, array, **more)
    return stream.getvalue()


def rejected(reason, *, round=7, changes=None, examples=8):
    with pytest.raises(UpdateRejected) as found:
        admit(SHAPE, 7, round, suffix(2) if changes is None else changes, examples)
    assert found.value.reason is reason
    assert str(found.value).startswith(f"{reason}: ")
    assert "\n" not in str(found.value)


# -- what is right


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_suffix_of_the_layers_is_let_in(depth):
    changes = suffix(depth)
    layers, checked = admit(SHAPE, 7, 7, changes, 16)
    assert layers == depth
    assert checked.keys() == changes.keys()


def test_files_are_as_good_as_arrays():
    changes = suffix(3)
    files = {name: saved(np.asfortranarray(value)) for name, value in changes.items()}
    _, checked = admit(SHAPE, 7, 7, files, 1)
    for name, value in changes.items():
        assert np.array_equal(checked[name], value)


# -- what is wrong, one thing at a time


def test_every_mistake_has_its_reason():
    whole = suffix(3)
    rejected(Reason.other_round, round=6)
    rejected(Reason.other_round, round=7.0)
    rejected(Reason.other_round, round=None)
    for examples in (0, -3, 2.5, math.nan, math.inf, None, "many", True, 2**60, [1], 10**5000):
        rejected(Reason.bad_weight, examples=examples)
    rejected(Reason.unknown_parameter, changes=whole | {"d.weight": np.zeros(3, np.float32)})
    rejected(Reason.unknown_parameter, changes=whole | {"statistics": np.zeros(7, np.float32)})
    rejected(Reason.unknown_parameter, changes=whole | {5: np.zeros(7, np.float32)})
    rejected(Reason.not_a_suffix, changes={"a.weight": whole["a.weight"], "a.bias": whole["a.bias"]})
    rejected(Reason.not_a_suffix, changes={"c.bias": whole["c.bias"]})
    rejected(Reason.not_a_suffix, changes={k: v for k, v in whole.items() if k != "b.weight"})
    rejected(Reason.wrong_shape, changes=suffix(1) | {"c.bias": np.zeros((2, 1), np.float32)})
    rejected(Reason.wrong_dtype, changes=suffix(1) | {"c.bias": np.zeros(2, np.float64)})
    rejected(Reason.wrong_dtype, changes=suffix(1) | {"c.bias": np.zeros(2, ">f4")})
    rejected(Reason.not_finite, changes=suffix(1) | {"c.bias": np.array([0.0, np.nan], np.float32)})
    rejected(Reason.not_finite, changes=suffix(1) | {"c.bias": np.array([0.0, np.inf], np.float32)})


@pytest.mark.parametrize("shape", [(1,), (), (2, 2), (0,)])
def test_a_shape_that_would_broadcast_is_refused(shape):
    rejected(Reason.wrong_shape, changes=suffix(1) | {"c.bias": np.ones(shape, np.float32)})


def test_files_that_are_none_are_refused():
    good = saved(WEIGHTS["c.bias"])
    for data in (b"", b"\x93NUMPY", good[:-1], good + b"\0", good[:20], pickle.dumps([1.0, 2.0]), b"\x80\x04K\x01."):
        rejected(Reason.unreadable, changes=suffix(1) | {"c.bias": data})
    rejected(Reason.unreadable, changes=suffix(1) | {"c.bias": [0.0, 0.0]})
    rejected(Reason.unreadable, changes=suffix(1) | {"c.bias": np.ma.masked_invalid([np.nan, 1.0])})
    rejected(Reason.oversize, changes=suffix(1) | {"c.bias": saved(np.zeros(3, np.float32))})


def header(text):
    body = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def test_a_header_cannot_make_us_allocate_or_run_anything():
    for text in (
        "{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -2), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '|S0', 'fortran_order': False, 'shape': (2,), }",
        "__import__('os').system('exit 1')",
        "{'descr': [('x', '|O')], 'fortran_order': False, 'shape': (2,), }",
    ):
        with pytest.raises(UpdateRejected) as found:
            read_array(header(text) + b"\0" * 8, limit=64)
        assert found.value.reason in (Reason.unreadable, Reason.oversize)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a payload was executed",))


def test_a_payload_that_would_execute_is_rejected():
    rejected(
        Reason.unreadable, changes=suffix(1) | {"c.bias": saved(np.array([Bomb(), Bomb()], object), allow_pickle=True)}
    )
    rejected(Reason.unreadable, changes=suffix(1) | {"c.bias": pickle.dumps(Bomb())})


# -- norms


def rejections(guard, updates):
    return guard.out_of_line([guard.norms(changes) for changes in updates])


def test_an_update_that_is_out_of_line_is_left_out_and_the_others_are_not():
    updates = [suffix(depth, seed=node) for node, depth in ((4, 3), (1, 3), (2, 2), (3, 3))]
    huge = suffix(3, seed=5, scale=1e4)
    out = rejections(NormGuard(SHAPE, 10.0), [*updates, huge])
    assert {i: why.reason for i, why in out.items()} == {4: Reason.norm}
    assert rejections(NormGuard(SHAPE, math.inf), [*updates, huge]) == {}


def test_two_updates_are_too_few_to_tell_who_is_out_of_line():
    assert rejections(NormGuard(SHAPE, 10.0), [suffix(3), suffix(3, scale=1e6)]) == {}


def test_a_device_with_other_data_is_not_out_of_line_because_the_others_have_finished_learning():
    guard = NormGuard(SHAPE, 10.0)
    assert rejections(guard, [suffix(3, seed=n) for n in range(4)]) == {}
    converged = [suffix(3, seed=n, scale=1e-3) for n in range(3)]
    assert rejections(guard, [*converged, suffix(3, seed=3)]) == {}
    out = rejections(guard, [*converged, suffix(3, seed=3, scale=1e4)])
    assert {i: why.reason for i, why in out.items()} == {3: Reason.norm}


def test_numbers_near_the_largest_do_not_overflow_the_norm():
    extreme = {name: np.full_like(value, 3e38) for name, value in suffix(3).items()}
    out = rejections(NormGuard(SHAPE, 10.0), [extreme, *(suffix(3, seed=n) for n in (2, 3, 4))])
    assert {i: why.reason for i, why in out.items()} == {0: Reason.norm}


# -- whatever comes, the model is what it would be without it


def damaged(draw):
    """A reply with something wrong in it, and whether it is wrong for sure."""
    changes = dict(suffix(draw(st.integers(1, 3)), seed=draw(st.integers(0, 99))))
    reply = {"claimed": 7, "changes": changes, "examples": 8}
    name = draw(st.sampled_from(sorted(changes)))
    value = changes[name]
    kind = draw(
        st.sampled_from(["bytes", "cut", "value", "shape", "dtype", "name", "missing", "round", "weight", "type"])
    )
    if kind == "bytes":
        changes[name] = draw(st.binary(max_size=200))
    elif kind == "cut":
        data = saved(value)
        changes[name] = data[: draw(st.integers(0, len(data) - 1))]
    elif kind == "value":
        spoiled = value.copy()
        spoiled.flat[draw(st.integers(0, value.size - 1))] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        changes[name] = spoiled
    elif kind == "shape":
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
        changes[name] = np.ones(shape if shape != value.shape else (*shape, 1), np.float32)
    elif kind == "dtype":
        changes[name] = value.astype(draw(st.sampled_from(["f8", "f2", ">f4", "i4", "c8", "?", "U3", "O"])))
    elif kind == "name":
        changes[draw(st.text(max_size=12).filter(lambda word: word not in WEIGHTS))] = changes.pop(name)
    elif kind == "missing":
        # Without its last layer it is a suffix of nothing, whatever is left.
        changes.pop("c.bias")
    elif kind == "round":
        reply["claimed"] = draw(st.one_of(st.integers(max_value=6), st.floats(), st.text(max_size=3), st.none()))
    elif kind == "weight":
        reply["examples"] = draw(st.one_of(st.integers(max_value=0), st.floats(), st.text(max_size=3), st.booleans()))
    else:
        changes[name] = draw(st.sampled_from([None, 3, "x", [1.0], {}, value.tolist(), np.float32(1.0), bytearray(8)]))
    return reply


def assert_rejected(data):
    reply = damaged(data.draw)
    with pytest.raises(UpdateRejected):
        admit(SHAPE, 7, **reply)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(st.data())
def test_no_damaged_reply_changes_a_bit_of_the_model(data):
    assert_rejected(data)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, derandomize=True)
@given(st.data())
def test_none_of_ten_thousand_damaged_replies_changes_a_bit_of_the_model(data):
    assert_rejected(data)


# -- merging


def test_the_merge_is_the_weighted_sum_in_device_order():
    rng = np.random.default_rng(0)
    depths = (3, 1, 2)
    A = rng.random((3, 3))
    total = {}
    for u, depth in enumerate(depths):
        add_weighted(total, LAYERS, suffix(depth, seed=u), A[u])
    for l, layer in enumerate(LAYERS):
        for name in layer:
            wanted = sum(A[u, l] * suffix(d, seed=u)[name].astype(float) for u, d in enumerate(depths) if d >= 3 - l)
            assert np.allclose(total[name], wanted, rtol=1e-5)


def test_tensors_and_arrays_merge_to_the_same_bits():
    rng = np.random.default_rng(1)
    A = rng.random((4, 3))
    A[2] = 0.0
    arrays, tensors = {}, {}
    for u in range(4):
        changes = suffix(1 + u % 3, seed=u)
        add_weighted(arrays, LAYERS, changes, A[u])
        add_weighted(tensors, LAYERS, {name: torch.from_numpy(value) for name, value in changes.items()}, A[u])
    assert arrays.keys() == tensors.keys()
    for name, value in arrays.items():
        assert value.tobytes() == tensors[name].numpy().tobytes()


def test_a_shape_needs_parameters_that_exist_once():
    with pytest.raises(ConfigError, match="not among"):
        Shape.of(WEIGHTS, [["a.weight", "nothing"]])
    with pytest.raises(ConfigError, match="one layer only"):
        Shape.of(WEIGHTS, [["a.weight"], ["a.weight"]])


def test_a_rejection_survives_the_way_between_processes():
    again = pickle.loads(pickle.dumps(UpdateRejected(Reason.norm, "by far")))
    assert (again.reason, str(again)) == (Reason.norm, "norm out of line: by far")
