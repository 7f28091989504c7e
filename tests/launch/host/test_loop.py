"""Later: what a loop without threads is to do when its time has come."""

from torchloom.launch.host.sockets import Timers


def test_what_is_due_is_done_once_and_the_rest_waits() -> None:
    later, done = Timers(), []
    later.put("now", 0.0, lambda: done.append("now"))
    later.put("tomorrow", 86_400.0, lambda: done.append("tomorrow"))

    later.do()
    later.do()

    assert done == ["now"]
    assert "tomorrow" in later
    assert "now" not in later
    assert [86_000 < wait <= 86_400 for wait in later.waits()] == [True]


def test_under_a_taken_name_the_newer_is_done_instead() -> None:
    later, done = Timers(), []
    later.put("it", 0.0, lambda: done.append("older"))
    later.put("it", 0.0, lambda: done.append("newer"))

    later.do()

    assert done == ["newer"]


def test_an_act_may_take_another_back_and_put_itself_again() -> None:
    later, done = Timers(), []

    def first() -> None:
        done.append("first")
        later.drop("second")
        later.put("first", 0.0, first)

    later.put("first", 0.0, first)
    later.put("second", 0.0, lambda: done.append("second"))
    later.drop("never put")

    later.do()

    assert done == ["first"]
    assert "first" in later
