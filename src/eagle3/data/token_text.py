"""Tokens as text, for people to read."""

from collections.abc import Callable, Sequence

from eagle3.target.info import TargetInfo

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What decoding gives for the first bytes of a character whose other bytes are to come."""


class TokenText:
    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode

    @staticmethod
    def of(target: TargetInfo, trust_remote_code: bool) -> "TokenText | None":
        """By the target's tokenizer; None where its folder has none that can be loaded."""
        file = target.path / "tokenizer.json"
        try:
            if file.is_file():
                # Read alone: transformers takes seconds to import.
                from tokenizers import Tokenizer

                fast = Tokenizer.from_file(str(file))
                return TokenText(lambda ids: fast.decode(ids, skip_special_tokens=False))
            from eagle3.data.tokenize import load_tokenizer

            slow = load_tokenizer(target, trust_remote_code)
            return TokenText(lambda ids: slow.decode(ids, clean_up_tokenization_spaces=False))
        except Exception:  # the tokenizers library raises no kind of its own; samples must not end a training
            return None

    def text(self, ids: Sequence[int]) -> str:
        return self._decode(list(ids))

    def pieces(self, before: Sequence[int], ids: Sequence[int]) -> list[str]:
        """What each of `ids` adds to the text of those `before` it: a tokenizer may write a first token differently."""
        known, found = list(before), []
        shown = self._decode(known)
        for token in ids:
            known.append(token)
            longer = self._decode(known)
            found.append(longer.removeprefix(shown.rstrip(INCOMPLETE)))
            shown = longer
        return found
