"""What happens in which week of the year."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

START = datetime(2025, 1, 6, 3, tzinfo=UTC)  # a Monday, when `train` is scheduled
FULL = 52
EVENTS = (20, 30, 35, 40, 45)  # of the full year
SHORTEST = 26
WEEK = timedelta(days=7)


@dataclass(frozen=True)
class Plan:
    """The weeks of events, and how much comes.

    Attributes:
        weeks: How many there are; the first is 0.
        drift: From this week on the camera gives negatives.
        noise: Some labels of this week's delivery are wrong, and are corrected the week after.
        corrupted: This week's delivery has broken images and a class of nothing else; they are
            mended the week after.
        rollback: After this week's training the champion goes back, and forward the week after.
        upgrade: After this week's training a newer version of the project is merged.
        lag: Weeks until an image that came in has a label, and is delivered.
        first: Images that there are in week 0.
        batch: Images that come in each week.
        busy: Those of the week that is delivered with wrong labels.
        epochs: Of each training.
        days: How many days `gc` keeps files of runs.
    """

    weeks: int
    drift: int
    noise: int
    corrupted: int
    rollback: int
    upgrade: int
    lag: int = 2
    first: int = 800
    batch: int = 40
    busy: int = 240
    epochs: int = 10
    days: int = 90

    @classmethod
    def of(cls, weeks: int) -> "Plan":
        """The plan of the year, or of one in which everything is as much shorter.

        Raises:
            ValueError: The events would lie too close to each other.
        """
        if weeks < SHORTEST:
            raise ValueError(
                f"A year that is played has {SMALL.weeks} weeks, or {SHORTEST} and more."
            )
        return cls(weeks, *(round(week * weeks / FULL) for week in EVENTS))

    def size(self, week: int) -> int:
        """How many images come in."""
        return self.busy if week == self.noise - self.lag else self.batch

    def numbers(self, week: int) -> range:
        """The numbers of the images that come in; those before week 0 are delivered after it."""
        begin = self.first + sum(map(self.size, range(-self.lag, week)))
        return range(begin, begin + self.size(week))


SMALL = Plan(
    weeks=5, noise=1, drift=1, corrupted=2, rollback=3, upgrade=3,
    lag=1, first=500, busy=200, epochs=8, days=14,
)  # fmt: skip


def monday(week: int) -> datetime:
    """When a week begins."""
    return START + week * WEEK
