from datetime import date

from geminga.demo import picture

WINDOW = {"airline": "JetBlue Airways", "on_time_share": 0.5, "origin": "JFK"}


def test_delays_by_week_count_flights_not_days(tmp_path):
    windows = [
        {**WINDOW, "day": "2013-01-01", "flights": 3, "cancelled": 0, "mean_departure_delay": 10.0},
        {**WINDOW, "day": "2013-01-06", "flights": 2, "cancelled": 1, "mean_departure_delay": 30.0},
        {**WINDOW, "day": "2013-01-07", "flights": 1, "cancelled": 1, "mean_departure_delay": None},
    ]
    assert picture.weekly_delays(windows) == {"JFK": {date(2012, 12, 31): 15.0}}
    drawn = picture.draw(windows, tmp_path / "flights.svg").read_text()
    assert drawn.startswith("<?xml")
    assert drawn == picture.draw(windows, tmp_path / "again.svg").read_text()
