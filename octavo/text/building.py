"""Building blocks that tokenizers from different kinds of files share."""

from collections.abc import Iterable, Mapping, Sequence

from tokenizers import AddedToken, decoders, normalizers, processors
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from octavo.core.errors import ModelLoadError

SPACE_MARK = "\u2581"


def surround(backend: Backend, *, bos: int | None, eos: int | None) -> None:
    """Make `backend` put the ids `bos` and `eos` around a text (those that aren't None), and nothing else."""
    parts, names = ["$A"], []
    if bos is not None:
        parts.insert(0, "BOS")
        names.append(("BOS", bos))
    if eos is not None:
        parts.append("EOS")
        names.append(("EOS", eos))
    template = " ".join(f"{part}:0" if part != "$A" else part for part in parts)
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=names)


def add_tokens(backend: Backend, *, special: Iterable[str], plain: Iterable[str]) -> None:
    """Make `backend` find these spellings in a text before anything else; `special` ones are control tokens."""
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    backend.add_tokens([AddedToken(text, normalized=False) for text in plain])


def byte_level(vocab: Mapping[str, int], merges: Sequence[str], source: str, *, whole_words: bool = False) -> Backend:
    """A byte-level BPE tokenizer, without pre-tokenizer.

    merges: two tokens with a space between, the first merge first.  A wrong one raises ModelLoadError, naming `source`.
    """
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    if wrong := next((merge for merge, pair in zip(merges, pairs, strict=True) if not all(pair) or " " in pair[1]), None):
        raise ModelLoadError(f"{source}: the entry {wrong!r} isn't two tokens")
    try:
        backend = Backend(BPE(vocab=dict(vocab), merges=pairs, ignore_merges=whole_words))
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{source}: the merges don't fit the vocabulary: {error}") from error
    backend.decoder = decoders.ByteLevel()
    return backend


def sentence_piece(vocab: Mapping[str, int], scores: Mapping[str, float], *, unk: str, add_space_prefix: bool) -> Backend:
    """A SentencePiece BPE tokenizer (Kudo and Richardson 2018) with byte fallback.

    scores: of the pieces that merging may produce; the highest-scored piece is merged first.
    """
    model = BPE(vocab=dict(vocab), merges=_merges(vocab, scores), unk_token=unk, fuse_unk=True, byte_fallback=True)
    backend = Backend(model)
    to_mark = normalizers.Replace(" ", SPACE_MARK)
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if add_space_prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), to_mark])
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    else:
        backend.normalizer = to_mark
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges(vocab: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to make a scored piece of two others, the best piece first; SentencePiece files hold scores, not merges."""
    merges: list[tuple[str, str]] = []
    for piece in sorted(scores, key=lambda piece: (-scores[piece], vocab[piece])):
        lefts = [piece[:cut] for cut in range(1, len(piece))]
        known = [(left, right) for left in lefts if left in scores and (right := piece[len(left) :]) in scores]
        merges += known if len(known) < 2 else sorted(known, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    return merges
