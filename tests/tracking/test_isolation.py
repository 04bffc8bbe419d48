"""Whatever a part does, the caller goes on: it raises, blocks for ever, asks for the end of the process, is slow."""

from dp_prior.tracking.isolation import LONGEST_PAUSE_S, Isolated
from tests.messages import told


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Part:
    """Remembers numbers; `fails` says which raise."""

    def __init__(self, fails=()):
        self.seen, self.fails, self.is_closed = [], set(fails), False

    def take(self, number):
        self.seen.append(number)
        if number in self.fails:
            raise OSError(f"{number} is broken")

    def close(self):
        self.is_closed = True

    def abandon(self):
        self.is_closed = None


def arguments(lines=None, **options):
    lines = [] if lines is None else lines
    return {"report": lambda message, source: lines.append(message), "max_failures": 2, "retry_s": 10.0, **options}


def contained(part, lines=None, **options):
    return Isolated(part, "part", **arguments(lines, **options))


def take(number):
    return lambda part: part.take(number)


def test_a_muted_part_is_tried_again_at_growing_intervals_and_calls_in_between_are_counted():
    clock, part, lines = Clock(), Part(range(100)), []
    box = contained(part, lines, clock=clock)
    tried = []
    for second in range(0, 200):
        clock.now = float(second)
        before = len(part.seen)
        box.call(take(second % 100))
        tried += [second] if len(part.seen) > before else []
    assert tried == [0, 1, 11, 31, 71, 151]  # 10, 20, 40, 80 seconds apart
    assert box.failures == 6 and box.dropped == 194
    first, muted = lines
    assert told(first, "part", "OSError: 0") and told(muted, "part", "OSError: 1", "2 failures", "10 s")
    assert told(box.summary(), "part", "6 times", "194 calls", "OSError: 51")


def test_the_pause_has_a_ceiling_and_a_success_ends_it():
    clock, part = Clock(), Part(range(10_000))
    box = contained(part, clock=clock)
    for number in range(2000):
        box.call(take(number), insist=True)
    assert box.pause_s == LONGEST_PAUSE_S
    part.fails = set()
    assert box.call(take(0), insist=True)
    assert box.pause_s == 0 and not box.is_muted


def test_a_part_without_a_limit_is_never_muted():
    part = Part(range(100))
    box = contained(part, max_failures=None)
    assert [box.call(take(number)) for number in range(50)] == [False] * 50
    assert len(part.seen) == 50
