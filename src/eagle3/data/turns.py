"""Where the assistant's turns lie in a conversation that a chat template has rendered.

A turn is what the model itself would write: all that follows the generation prompt, up to and with the token that ends
the turn. A template with `{% generation %}` marks says so itself. For any other, the conversation is rendered once as
it is and once with a placeholder for each answer; what stands between the placeholders is the template's own text, and
the first rendering is cut along it. Both are linear in the conversation; rendering every prefix would be quadratic.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from eagle3.data.prompts import Message
from eagle3.errors import ConfigError

_REFUSALS = (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError)
"""What rendering raises: by `raise_exception`, or because the template did not expect such messages."""

Span = tuple[int, int]
"""Characters [start, end) of the rendered conversation."""

MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")


class UnmaskableError(ValueError):
    """Why the turns of this conversation can't be told from the template's text."""


class Turns:
    """The turns of conversations rendered by one chat template."""

    def __init__(self, tokenizer: Any, template: str, end_tokens: Iterable[str]) -> None:
        """
        Args:
            end_tokens: what the model may end its turn with, as text: its end-of-sequence tokens.
        """
        self._tokenizer = tokenizer
        self._template = template
        self.marked = MARKED.search(template) is not None
        added = [str(token) for token in tokenizer.added_tokens_decoder.values()]
        ends = {token for token in end_tokens if token}
        before, after = self._probe_turn()
        # Where the template shows past turns without the prompt's own text (that ends in `<think>`, say), a turn begins
        # with the answer.
        prompt = self._probe_prompt()
        self.generation_prompt = prompt if prompt in before else ""
        # Some templates end a turn with another token than the tokenizer's end of sequence. After the last turn no next
        # one begins, so an added token that stands there ends it.
        ends.update(token for token in added if after.lstrip().startswith(token))
        self.end_tokens = sorted(ends, key=len, reverse=True)

    def __call__(self, messages: list[Message]) -> tuple[str, list[Span]]:
        """The rendered text, and the span of each assistant turn in order.

        Raises:
            UnmaskableError: the template refuses the conversation, or renders it in a way that leaves doubt.
        """
        if self.marked:
            return self._by_marks(messages)
        text = self._render(messages)
        return text, self._by_placeholders(messages, text)

    def _render(self, messages: list[Message], add_generation_prompt: bool = False) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"target.chat_template: not Jinja, line {error.lineno}: {error.message}. Mend the file, or set "
                "target.chat_template=null for the tokenizer's own."
            ) from error
        except _REFUSALS as error:
            raise UnmaskableError(f"the chat template refuses it: {error}") from error

    def prompt(self, messages: list[Message]) -> str:
        """The text that the model continues with its next answer. Raises UnmaskableError where the template refuses."""
        return self._render(messages, add_generation_prompt=True)

    def _probe_prompt(self) -> str:
        """What `add_generation_prompt` adds: the header of an assistant's turn. Empty where it adds nothing."""
        asked: list[Message] = [{"role": "user", "content": "Ask"}]
        try:
            bare, prompted = self._render(asked), self._render(asked, add_generation_prompt=True)
        except UnmaskableError:
            return ""
        return prompted.removeprefix(bare) if prompted.startswith(bare) else ""

    def _probe_turn(self) -> tuple[str, str]:
        """What the template writes before and after an answer that is the last message."""
        try:
            text = self._render([{"role": "user", "content": "Ask"}, {"role": "assistant", "content": "Answer7"}])
        except UnmaskableError:
            return "", ""
        before, _, after = text.partition("Answer7")
        return before, after

    def _by_marks(self, messages: list[Message]) -> tuple[str, list[Span]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        special: dict[str, Any] = {k: v for k, v in self._tokenizer.special_tokens_map.items() if isinstance(v, str)}
        try:
            texts, marks = render_jinja_template(
                [messages], chat_template=self._template, return_assistant_tokens_mask=True, **special
            )
        except _REFUSALS as error:
            raise UnmaskableError(f"the chat template refuses it: {error}") from error
        spans: list[Span] = [(int(start), int(end)) for start, end in marks[0]]
        bounds = [0, *(edge for span in spans for edge in span), len(texts[0])]
        if bounds != sorted(bounds):
            raise UnmaskableError("the template's {% generation %} marks overlap or lie outside of its text")
        if len(spans) != sum(message["role"] == "assistant" for message in messages):
            raise UnmaskableError(
                "the template's {% generation %} marks are not one for each answer; mend it, or remove the marks"
            )
        return texts[0], spans

    def _by_placeholders(self, messages: list[Message], text: str) -> list[Span]:
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        pieces = self._pieces(messages, len(answers))
        headers = [self._header(piece) for piece in pieces[:-1]]
        # Piece i, up to where turn i begins; then the turn; then the next piece. The last piece ends the text.
        position, spans = 0, []
        for number, answer in enumerate(answers):
            lead, inside = pieces[number][: headers[number]], pieces[number][headers[number] :]
            following = pieces[number + 1][: headers[number + 1]] if number + 1 < len(answers) else pieces[-1]
            if not text.startswith(lead, position):
                raise UnmaskableError("the chat template's own text depends on the answers")
            start = position + len(lead)
            end_token = self._end_of_turn(following)
            end = _end_of_answer(text, start, inside, answer, following, end_token, number == len(answers) - 1)
            spans.append((start, end + len(end_token)))
            position = end
        return spans

    def _pieces(self, messages: list[Message], answers: int) -> list[str]:
        """The template's text before, between and after the answers."""
        everything = "\n".join(message["content"] for message in messages)
        name = "EagleTurn"
        while name in everything:
            name += "Q"
        number, stand_ins = 0, []
        for message in messages:
            if message["role"] == "assistant":
                stand_ins.append({**message, "content": f"{name}{number}Z"})
                number += 1
            else:
                stand_ins.append(message)
        pieces = re.split(f"{name}[0-9]+Z", self._render(stand_ins))
        if len(pieces) != answers + 1:
            raise UnmaskableError(f"the chat template renders {len(pieces) - 1} of {answers} answers")
        return pieces

    def _header(self, piece: str) -> int:
        """Where in the text before an answer the turn begins: after the generation prompt, where there is one."""
        at = piece.rfind(self.generation_prompt) if self.generation_prompt else -1
        if at >= 0:
            return at + len(self.generation_prompt)
        # Without one, a space before the answer is the model's: `[/INST] answer` is the tokens `[/INST]`, `_answer`.
        return len(piece.rstrip(" "))

    def _end_of_turn(self, following: str) -> str:
        """The white space and end token that the text after an answer begins with; empty where it has no end token."""
        bare = following.lstrip()
        for token in self.end_tokens:
            if bare.startswith(token):
                return following[: len(following) - len(bare)] + token
        return ""


_SHAPES: tuple[Callable[[str], str], ...] = (str, str.strip, str.lstrip, str.rstrip)
"""What templates do to an answer before they write it."""


def _end_of_answer(text: str, start: int, inside: str, answer: str, following: str, end_token: str, last: bool) -> int:
    """Where the answer ends whose turn begins at `start`, and the template's text `following` begins.

    `inside` is what the template puts between the turn's beginning and the answer. `last`: nothing comes after.
    """
    ends = set()
    for shape in _SHAPES:
        written = inside + shape(answer)
        end = start + len(written)
        if text.startswith(written + following, start) and (not last or end + len(following) == len(text)):
            ends.add(end)
    if not ends and (token := end_token.lstrip()) and token not in answer:
        # The template rewrote the answer, as those do that leave out what was thought: it goes to the turn's end.
        end = text.find(token, start) - (len(end_token) - len(token))
        if end >= start and text.startswith(following, end) and (not last or end + len(following) == len(text)):
            ends.add(end)
    if len(ends) != 1:
        raise UnmaskableError("where an answer ends in the rendered conversation is not certain")
    return ends.pop()
