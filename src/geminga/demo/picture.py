"""Picture of the result: mean delays per week, and punctuality of the airlines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path

from geminga.demo.proof import Window, airlines
from geminga.tuning.pictures import new_figure, save

AIRPORTS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}


def weekly_delays(windows: Iterable[Window]) -> dict[str, dict[date, float]]:
    """Return by airport and Monday of each week: mean departure delay in minutes."""
    sums: dict[tuple[str, date], tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for window in windows:
        flown = window["flights"] - window["cancelled"]
        if flown:
            day = date.fromisoformat(window["day"])
            place = (window["origin"], day - timedelta(days=day.weekday()))
            minutes, count = sums[place]
            sums[place] = (minutes + window["mean_departure_delay"] * flown, count + flown)
    found: dict[str, dict[date, float]] = defaultdict(dict)
    for (origin, week), (minutes, count) in sorted(sums.items()):
        found[origin][week] = minutes / count
    return dict(found)


def draw(windows: list[Window], path: Path) -> Path:
    """Draw the picture from the windows, as SVG; returns ``path``."""
    figure = new_figure(11, 4.4)
    late, punctual = figure.subplots(1, 2, width_ratios=(3, 2))
    for origin, weeks in weekly_delays(windows).items():
        late.plot(list(weeks), list(weeks.values()), label=AIRPORTS.get(origin, origin), linewidth=1.5)
    late.set(title="How late flights left New York City in 2013", ylabel="minutes, mean of a week")
    late.legend(frameon=False)
    late.grid(alpha=0.3)
    late.tick_params(axis="x", rotation=30)
    ranked = airlines(windows)[::-1]
    punctual.barh([each["airline"] for each in ranked], [each["on_time"] * 100 for each in ranked])
    punctual.set(title="Left at most 15 minutes late", xlabel="% of an airline's flights", xlim=(0, 100))
    punctual.tick_params(axis="y", labelsize=8)
    for axes in (late, punctual):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    save(figure, path)
    return path
