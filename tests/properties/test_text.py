import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.text.detokenizer import TextStream

letters = st.text(alphabet="aé🎉", max_size=40)
stops = st.lists(st.text(alphabet="aé🎉", min_size=1, max_size=5), max_size=4)
cuts = st.lists(st.integers(0, 200), max_size=30)
patient = settings(deadline=None)


def pieces(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted(n for n in at if n <= len(data)), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


def run(parts: list[bytes], stop: list[str]) -> tuple[list[str], str, bool]:
    stream = TextStream(stop)
    return [stream.push(part) for part in parts], stream.finish(), stream.stopped


def naive(text: str, stop: list[str]) -> tuple[str, bool]:
    """Cut the text at the first place where a stop string is complete; of several the longest counts."""
    for end in range(len(text) + 1):
        complete = [s for s in stop if text[:end].endswith(s)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@patient
@given(letters, cuts, stops)
def test_any_cutting_gives_what_the_naive_reference_gives(text, at, stop):
    shown, rest, stopped = run(pieces(text.encode(), at), stop)
    assert ("".join(shown) + rest, stopped) == naive(text, stop)


@patient
@given(letters, cuts, stops)
def test_what_is_shown_is_never_taken_back_and_never_a_stop_string(text, at, stop):
    shown, rest, stopped = run(pieces(text.encode(), at), stop)
    final, _ = naive(text, stop)
    for n in range(len(shown) + 1):
        assert final.startswith("".join(shown[:n]))
    assert not any(s in "".join(shown) + rest for s in stop)
    assert not (stopped and rest)


@patient
@given(letters, cuts)
def test_text_comes_as_soon_as_its_bytes_are_there(text, at):
    parts = pieces(text.encode(), at)
    shown, rest, _ = run(parts, [])
    for n in range(len(parts) + 1):
        whole = b"".join(parts[:n]).decode("utf-8", errors="ignore")
        assert "".join(shown[:n]) == whole
    assert rest == ""


@patient
@given(st.text(), cuts, st.lists(st.text(min_size=1, max_size=3), max_size=3))
def test_no_replacement_sign_for_text(text, at, stop):
    text = text.replace("\ufffd", "").encode("utf-8", errors="ignore").decode()
    shown, rest, _ = run(pieces(text.encode(), at), stop)
    assert "\ufffd" not in "".join(shown) + rest


@patient
@given(st.binary(max_size=60), cuts, stops)
def test_any_bytes_in_any_cutting_give_the_same(data, at, stop):
    shown, rest, stopped = run(pieces(data, at), stop)
    whole, whole_rest, whole_stopped = run([data], stop)
    assert ("".join(shown) + rest, stopped) == ("".join(whole) + whole_rest, whole_stopped)


@patient
@given(letters, cuts, stops)
def test_what_is_held_back_begins_a_stop_string(text, at, stop):
    stream = TextStream(stop)
    sent, shown = b"", ""
    for part in pieces(text.encode(), at):
        sent += part
        shown += stream.push(part)
        if stream.stopped:
            return
        held = sent.decode("utf-8", errors="ignore")[len(shown) :]
        assert held == "" or any(s.startswith(held) for s in stop)
