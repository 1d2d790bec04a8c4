"""`CacheKey`: two keys share a digest exactly when they are equal, whatever strings a client sends."""

import copy
import dataclasses
import math
import pickle
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.cache_key import CacheKey, PublishedNamespace, TenantNamespace
from octavo.core.errors import InvariantError

BASE = CacheKey(
    weights="w",
    revision="r",
    compute_dtype="bfloat16",
    kv_dtype="float16",
    kv_layout="1",
    positions="{}",
    tokenizer="t",
    chat_template="c",
    adapter="a",
    adapter_scale=0.5,
    media=(("m", 3), ("n", 9)),
    numerics=(("torch", "2.9"), ("path", "avx2")),
    namespace=TenantNamespace("a", "bc"),
)
INPUTS = [one.name for one in fields(CacheKey) if one.init]

# For every field, values that differ from BASE's and from each other.  A new field fails below until it has its line here.
OTHERS = {
    **{
        name: ["", "x", "x\0", "\ud800"]
        for name in (
            "weights",
            "revision",
            "compute_dtype",
            "kv_dtype",
            "kv_layout",
            "positions",
            "tokenizer",
            "chat_template",
            "adapter",
        )
    },
    "adapter_scale": [0.0, -0.5, math.nextafter(0.5, 1), 5e-324, 1e308],
    "media": [
        (),
        (("m", 3),),
        (("n", 9), ("m", 3)),
        (("m", 4), ("n", 9)),
        (("m", 3), ("n", -9)),
        (("m", 3), ("n9", 9)),
        (("mn", 39),),
    ],
    "numerics": [
        (),
        (("torch", "2.9"),),
        (("path", "avx2"), ("torch", "2.9")),
        (("torch2", ".9"), ("path", "avx2")),
        (("torch", "2.9path"),),
    ],
    "namespace": [
        TenantNamespace(),
        TenantNamespace("ab", "c"),
        TenantNamespace("abc", ""),
        TenantNamespace("", "abc"),
        TenantNamespace("bc", "a"),
        PublishedNamespace("a"),
        PublishedNamespace("abc"),
        PublishedNamespace(""),
    ],
}

# Few characters, a lone surrogate beside its pair, and the words of the spelling itself: what is joined carelessly collides at once.
texts = st.lists(st.sampled_from(["a", "b", "0", "\0", "\ud83e", "\udd1d", "\U0001f91d", "s", "i", "T", "srevision"]), max_size=4).map(
    "".join
)
shapes = {
    **{name: texts for name, values in OTHERS.items() if isinstance(values[0], str)},
    "adapter_scale": st.sampled_from([0.0, -0.0, 1.0, -1.0]) | st.floats(allow_nan=False, allow_infinity=False),
    "media": st.lists(st.tuples(texts, st.integers(-300, 300) | st.integers()), max_size=3).map(tuple),
    "numerics": st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    "namespace": st.builds(TenantNamespace, texts, texts) | st.builds(PublishedNamespace, texts),
}
keys = st.fixed_dictionaries(shapes).map(lambda values: CacheKey(**values))


def test_every_field_has_a_case():
    assert set(OTHERS) == set(INPUTS) == set(shapes)
    assert [one.name for one in fields(CacheKey) if not one.init] == ["digest"]
    assert all(getattr(BASE, one.name) != one.default for one in fields(CacheKey) if one.init)


@pytest.mark.parametrize("name", INPUTS)
def test_one_field_changed_alone_changes_the_digest(name):
    changed = [replace(BASE, **{name: value}) for value in OTHERS[name]]
    assert len({BASE.digest, *(key.digest for key in changed)}) == len(changed) + 1
    assert replace(changed[0], **{name: getattr(BASE, name)}) == BASE


@settings(max_examples=300, deadline=None)
@given(one=keys, other=keys)
def test_equal_digests_are_equal_keys_and_only_they(one, other):
    assert (one.digest == other.digest) == (one == other)
    again = CacheKey(**{name: getattr(one, name) for name in INPUTS})
    assert (again, again.digest, hash(again)) == (one, one.digest, hash(one))
    assert len(one.digest) == 32


@settings(max_examples=300, deadline=None)
@given(key=keys, data=st.data())
def test_what_moves_from_one_text_to_the_next_makes_another_key(key, data):
    """The same characters in the same order, cut elsewhere: between two fields, tenant and salt, or the parts of a tuple."""
    first, second = data.draw(st.permutations([name for name in INPUTS if isinstance(getattr(key, name), str)]))[:2]
    pairs = [
        (lambda one, two: replace(key, **{first: one, second: two})),
        (lambda one, two: replace(key, namespace=TenantNamespace(one, two))),
        (lambda one, two: replace(key, numerics=((one, two),))),
        (lambda one, two: replace(key, numerics=((one, "s"), (two, "")))),
        (lambda one, two: replace(key, media=((one, 1), (two, 1)))),
    ]
    joined = data.draw(texts) + data.draw(texts)
    for made_of in pairs:
        every_cut = [made_of(joined[:cut], joined[cut:]) for cut in range(len(joined) + 1)]
        assert len({made.digest for made in every_cut}) == len(set(every_cut)) == len(every_cut)
        # What might stand between two texts, sent as part of the first or of the second: A|B C or A B|C.
        for between in ("s", "\0", "s" + "\0" * 8, ",", f"s{second}"):
            one, two = made_of(f"{joined}{between}{joined}", "c"), made_of(joined, f"{joined}{between}c")
            assert one.digest != two.digest


def test_k01_03_no_client_text_composes_another_key():
    pairs = [
        ("a", "bc"),
        ("ab", "c"),
        ("abc", ""),
        ("", "abc"),
        ("a", "b"),
        ("a\0b", "c"),
        ("a", "\0bc"),
        ("default", "a"),
        ("a", "default"),
    ]
    tenants = [CacheKey(namespace=TenantNamespace(*pair)) for pair in pairs]
    published = [CacheKey(namespace=PublishedNamespace(name)) for name in ("a", "abc", "bc", "")]
    with_adapter = [CacheKey(adapter="abc"), CacheKey(adapter="abc", namespace=TenantNamespace(salt="abc"))]
    inner = repr(PublishedNamespace("a"))
    spelled = [CacheKey(namespace=TenantNamespace(inner, "")), CacheKey(namespace=TenantNamespace("", inner))]
    spelled += [CacheKey(namespace=TenantNamespace(salt=with_adapter[0].digest.hex()))]
    whole = [*tenants, *published, *with_adapter, *spelled]
    assert len({key.digest for key in whole}) == len(whole)


def test_surrogates_in_a_salt_are_told_apart():
    salts = ["\ud83e\udd1d", "\U0001f91d", "\ud83e", "\udd1d", "\udd1d\ud83e", "\ufffd", "\ufffd\ufffd", "?", ""]
    assert len({CacheKey(namespace=TenantNamespace(salt=salt)).digest for salt in salts}) == len(salts)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("adapter_scale", 1),
        ("adapter_scale", True),
        ("adapter_scale", math.nan),
        ("adapter_scale", math.inf),
        ("adapter_scale", "1.0"),
        ("weights", 1),
        ("weights", None),
        ("weights", b"w"),
        ("revision", True),
        ("media", (("m", True),)),
        ("media", (("m", 1.0),)),
        ("media", (("m", 1, 2),)),
        ("media", [("m", 1)]),
        ("media", (["m", 1],)),
        ("media", ("m1",)),
        ("numerics", (("torch", 2),)),
        ("numerics", (("torch",),)),
        ("namespace", ("a", "b")),
        ("namespace", "a"),
        ("namespace", TenantNamespace(1, "")),
        ("namespace", TenantNamespace("a", None)),
        ("namespace", PublishedNamespace(None)),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(name, value):
    shown = "tenant|salt|published prefix" if isinstance(value, TenantNamespace | PublishedNamespace) else name
    with pytest.raises(InvariantError, match=shown):
        replace(BASE, **{name: value})


def test_a_subclass_that_could_compare_as_it_likes_is_refused():
    class Sly(str):
        def __eq__(self, other):
            return True

        __hash__ = str.__hash__

    with pytest.raises(InvariantError, match="tokenizer"):
        CacheKey(tokenizer=Sly("x"))
    with pytest.raises(InvariantError, match="tenant"):
        CacheKey(namespace=TenantNamespace(Sly("x")))


def test_the_two_zeros_are_one_scale():
    minus, plus = CacheKey(adapter_scale=-0.0), CacheKey(adapter_scale=0.0)
    assert (minus, minus.digest) == (plus, plus.digest)
    assert math.copysign(1, minus.adapter_scale) == 1


def test_a_key_is_frozen_and_survives_a_copy():
    with pytest.raises(dataclasses.FrozenInstanceError):
        BASE.weights = "other"
    for copied in (copy.deepcopy(BASE), pickle.loads(pickle.dumps(BASE))):
        assert (copied, copied.digest) == (BASE, BASE.digest)


def test_the_spelling_is_this_one():
    """Tiers on disk outlive a version: whoever changes the spelling makes all of them miss, and should know it."""
    assert CacheKey().digest.hex() == "8be1538b97bbff6b7e6ca16945c8efdd910b4a3a2d538429a9c85f97c3b9dc8a"
    assert BASE.digest.hex() == "188dac405e742912189d6379fd42a3b2ca9d819f02c173f819d36b5db7d19911"
