"""Tokens with the place where each begins in the text."""

from typing import Any

import numpy as np
import tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from eagle3.errors import DataError

IntArray = np.ndarray[Any, np.dtype[np.integer]]


class OffsetEncoder:
    """Encodes rendered text: (ids, character at which each token begins). No special token is added."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend: tokenizers.Tokenizer | None = None
        if getattr(tokenizer, "is_fast", False):
            self._backend = tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
            self._backend.no_truncation()
            self._backend.no_padding()
            # It only adds special tokens, which the template has written, and trims the offsets, which we need whole.
            self._backend.post_processor = None  # pyright: ignore[reportAttributeAccessIssue]
        else:
            self._bytes = {character: byte for byte, character in bytes_to_unicode().items()}
            self._added = {str(token) for token in tokenizer.added_tokens_decoder.values()}

    def __call__(self, texts: list[str]) -> list[tuple[IntArray, IntArray]]:
        """Raises DataError for a tokenizer whose tokens can't be placed in the text."""
        if self._backend is None:
            return [self._by_bytes(text) for text in texts]
        encodings = self._backend.encode_batch(texts, add_special_tokens=False)
        return [(np.array(e.ids, np.int32), np.array([start for start, _ in e.offsets], np.int64)) for e in encodings]

    def _by_bytes(self, text: str) -> tuple[IntArray, IntArray]:
        """For tokenizers in Python (tiktoken ones, as Kimi's): a byte-level token is as long as its bytes."""
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        pieces = [self._piece(token) for token in self._tokenizer.convert_ids_to_tokens(ids)]
        raw = text.encode()
        if b"".join(pieces) != raw:
            raise DataError(
                "the target's tokenizer is neither a fast one nor byte-level: where its tokens lie in the text can not "
                "be told, and so not which are the assistant's. Save the target with a fast tokenizer (tokenizer.json)."
            )
        begins = np.cumsum([0, *(len(piece) for piece in pieces)])[:-1]
        # Byte position to character: how many characters have begun before it. A token may begin inside a character.
        first_bytes = (np.frombuffer(raw, np.uint8) & 0xC0) != 0x80
        characters = np.concatenate([[0], np.cumsum(first_bytes)])
        inside = ~first_bytes[begins] if len(begins) else np.zeros(0, bool)
        return np.array(ids, np.int32), (characters[begins] - inside).astype(np.int64)

    def _piece(self, token: str) -> bytes:
        if token in self._added:
            return token.encode()
        try:
            return bytes(self._bytes[character] for character in token)
        except KeyError:
            return token.encode()
