"""Cut what a NATS server says into messages and words of its own; many of them from one read."""

from dataclasses import dataclass, field

from torchloom.bus.api import Said

_MOST_WORDS = 1 << 20  # bytes of a line; what a server says of itself can be long
_MOST_DATA = 64 << 20  # bytes of a message: no server takes more
_NOBODY = b"NATS/1.0 503"


class NoProtocol(Exception):
    """What came is not what a NATS server says."""


@dataclass(slots=True)
class Heard:
    """What was whole: messages by subscription, requests without a hearer, and the server's words.

    The order is that of the server within a subscription, and within its words.
    """

    messages: dict[bytes, list[Said]] = field(default_factory=dict)
    unheard: list[str] = field(default_factory=list)
    words: list[bytes] = field(default_factory=list)


class Parser:
    """Takes bytes as they come and returns what is whole by now; the rest waits for more."""

    def __init__(self) -> None:
        self._rest = b""
        self._wanted = 0  # bytes without which what waits cannot be whole

    def feed(self, data: bytes) -> Heard:
        """Return what these bytes complete; raises NoProtocol."""
        heard = Heard()
        data = self._rest + data if self._rest else data
        start = 0
        if len(data) >= self._wanted:
            try:
                start = self._cut(data, heard)
            except (ValueError, IndexError) as error:
                raise NoProtocol(str(error)) from error
        self._rest = data[start:]
        return heard

    def _cut(self, data: bytes, heard: Heard) -> int:
        """Take in all that is whole and return where the rest begins.

        Messages without headers, which is nearly all there is, take the shortest way.
        """
        start, have, messages = 0, len(data), heard.messages
        self._wanted = 0
        while (end := data.find(b"\r\n", start)) >= 0:
            if data.startswith(b"MSG ", start):
                words = data[start:end].split(b" ")
                after = _after(end, int(words[-1]))
                if after <= have:
                    reply = words[3].decode() if len(words) == 5 else ""
                    said = (words[1].decode(), data[end + 2 : after - 2], reply)
                    if words[2] in messages:
                        messages[words[2]].append(said)
                    else:
                        messages[words[2]] = [said]
            elif data.startswith(b"HMSG ", start):
                after = _with_headers(data, start, end, heard)
            else:
                heard.words.append(data[start:end])
                after = end + 2
            if after > have:
                self._wanted = after - start
                return start
            start = after
        if have - start > _MOST_WORDS:
            raise NoProtocol("a line without an end")
        return start


def _after(end: int, length: int) -> int:
    """Return where the next thing begins after a message of a length, whose line ends here."""
    if not 0 <= length <= _MOST_DATA:
        raise NoProtocol(f"a message of {length} bytes")
    return end + length + 4


def _with_headers(data: bytes, start: int, end: int, heard: Heard) -> int:
    """Take in a message with headers, if it is whole; of those only one says something to us."""
    words = data[start:end].split(b" ")
    body, after = _after(end, int(words[-2])) - 2, _after(end, int(words[-1]))
    if body > after - 2:
        raise NoProtocol("headers that are longer than their message")
    if after > len(data):
        return after
    subject = words[1].decode()
    if body == after - 2 and data.startswith(_NOBODY, end + 2):
        heard.unheard.append(subject)
    else:
        reply = words[3].decode() if len(words) == 6 else ""
        heard.messages.setdefault(words[2], []).append((subject, data[body : after - 2], reply))
    return after
