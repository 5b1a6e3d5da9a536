"""Requests judged, budgets burnt, alerts begun and ended: all on a clock that is handed in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.fleet.slos import AlertsConfig, BurnRule, Measure, Objective, Severity
from headrace.fleet.slo.alerts import Alerts, AlertState
from headrace.fleet.slo.book import SloBook, judge
from headrace.fleet.slo.counts import NUM_SLOTS, SlidingCount
from headrace.fleet.slo.values import Ended, Pauses, Verdict

DAY, HOUR = 86_400.0, 3600.0
TTFT = Objective(name="ttft", measure=Measure.TTFT, threshold=0.5, target=0.99)


def ended(**fields):
    given = {"model": "m", "tenant": "t", "priority": "standard", "verdict": Verdict.GOOD}
    return Ended(**{**given, **fields})


# -- windows ---------------------------------------------------------------------------------------


@given(
    st.floats(0.5, 1000.0),
    st.lists(st.tuples(st.floats(0.0, 400.0), st.integers(0, 9), st.integers(0, 9)), max_size=60),
    st.floats(0.0, 2000.0),
)
def test_a_window_holds_what_is_younger_than_it_and_nothing_much_older(span, events, wait):
    count, now, kept = SlidingCount(span), 5000.0, []
    for pause, good, bad in events:
        now += pause
        count.add(now, good, bad)
        kept.append((now, good, bad))
    now += wait
    good, bad = count.counts(now)
    step = span / NUM_SLOTS
    for found, at in ((good, 1), (bad, 2)):
        # A hair's breadth for slots whose borders are no exact floats.
        least = sum(e[at] for e in kept if e[0] > now - span + 1e-6)
        most = sum(e[at] for e in kept if e[0] >= now - span - step - 1e-6)
        assert least <= found <= most


def test_a_clock_that_stands_still_or_goes_back_counts_all_the_same():
    count = SlidingCount(60.0)
    count.add(100.0, 1, 0)
    count.add(99.0, 0, 1)
    assert count.counts(99.0) == (1, 1)
    assert count.counts(1e9) == (0, 0)


# -- judgement -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "fields", "counted"),
    [
        (TTFT, {"ttft": 0.5}, (1, 0)),
        (TTFT, {"ttft": 0.51}, (0, 1)),
        (TTFT, {}, (0, 0)),
        (TTFT, {"ttft": 0.4, "has_first_token": False}, (0, 0)),
        (TTFT, {"ttft": 0.6, "has_first_token": False}, (0, 1)),
        (Objective(name="a", measure=Measure.TPOT, threshold=0.1), {"tpot": 0.2}, (0, 1)),
        (Objective(name="a", measure=Measure.E2E, threshold=9.0), {"e2e": 8.0}, (1, 0)),
        (
            Objective(name="a", measure=Measure.ITL, threshold=0.1),
            {"pauses": Pauses((0.05, 0.1, 0.2), (5, 3, 2, 1))},
            (8, 3),
        ),
        (Objective(name="a", measure=Measure.AVAILABILITY), {}, (1, 0)),
        (Objective(name="a", measure=Measure.AVAILABILITY), {"verdict": Verdict.BAD}, (0, 1)),
        (Objective(name="a", measure=Measure.AVAILABILITY), {"verdict": Verdict.NEITHER}, (0, 0)),
    ],
)
def test_a_request_is_judged_by_what_was_measured_of_it(objective, fields, counted):
    assert judge(objective, ended(**fields)) == counted


def test_objectives_are_about_models_tenants_and_classes():
    objective = Objective(
        name="gold", measure=Measure.AVAILABILITY, model="llama-*", tenant="acme", priority="high"
    )
    book = SloBook([objective], AlertsConfig(), 0.0)
    fitting = {"model": "llama-8b", "tenant": "acme", "priority": "high"}
    assert book.note(ended(**fitting), 1.0) == [("gold", "llama-8b", 1, 0)]
    for other in ({"model": "qwen"}, {"tenant": "bob"}, {"priority": "low"}):
        assert book.note(ended(**{**fitting, **other}), 1.0) == []


def test_each_model_has_a_budget_of_its_own_and_the_number_of_budgets_is_bounded():
    book = SloBook([TTFT], AlertsConfig(), 0.0)
    for number in range(300):
        book.note(ended(model=f"m{number}", ttft=9.0 if number == 7 else 0.1), 1.0)
    reports = {report.model: report for report in book.reports(1.0)}
    assert len(reports) == 101
    assert reports["m7"].attainment == 0.0
    assert reports["m8"].attainment == 1.0
    assert reports["other"].good == 200


def test_it_says_by_which_bounds_pauses_must_be_counted():
    itl = Objective(name="itl", measure=Measure.ITL, threshold=0.033, tenant="acme")
    assert SloBook([TTFT, itl], AlertsConfig(), 0.0).pause_bounds == (0.033,)


# -- budgets and alerts ----------------------------------------------------------------------------


def run(book, alerts, *, start, seconds, every, bad_share):
    """Requests at an even pace, of which so many are bad; what alerts told, with when."""
    told, now, number = [], start, 0
    while now < start + seconds:
        number += 1
        is_bad = int(number * bad_share) > int((number - 1) * bad_share)
        book.note(ended(ttft=0.9 if is_bad else 0.1), now)
        told += [(now, alert) for alert in alerts.update(book.reports(now), now, now)]
        now += every
    return told, now


def made(objective=TTFT, **fields):
    config = AlertsConfig(**fields)
    return SloBook([objective], config, 0.0), Alerts(config)


def test_a_fleet_that_keeps_its_objective_is_never_alerted():
    book, alerts = made()
    told, now = run(book, alerts, start=0.0, seconds=3 * DAY, every=30.0, bad_share=0.005)
    assert told == []
    (report,) = book.reports(now)
    assert report.attainment == pytest.approx(0.995, abs=1e-4)
    assert report.budget_left == pytest.approx(1 - 0.5 * 3 / 30, abs=0.01)
    assert report.covered == pytest.approx(3 * DAY)


def test_all_requests_bad_is_critical_long_before_the_budget_is_spent():
    book, alerts = made()
    run(book, alerts, start=0.0, seconds=DAY, every=10.0, bad_share=0.0)
    told, _ = run(book, alerts, start=DAY, seconds=HOUR, every=10.0, bad_share=1.0)
    when, first = told[0]
    assert first.severity is Severity.CRITICAL
    # 2 % of the budget of 30 days, at a hundred times the pace: 8.6 minutes.
    assert when - DAY == pytest.approx(0.02 * 30 * DAY / 100, rel=0.15)
    assert first.budget_left > 0.95
    assert "burns" in first.reason
    assert "ttft of m: 99 % of requests should be within 500ms" in first.reason


def test_a_slow_burn_is_a_warning_and_grows_to_critical_once():
    book, alerts = made()
    run(book, alerts, start=0.0, seconds=DAY, every=30.0, bad_share=0.0)
    slow, now = run(book, alerts, start=DAY, seconds=3 * DAY, every=30.0, bad_share=0.02)
    firsts = [alert for _, alert in slow][:1]
    assert [a.severity for a in firsts] == [Severity.WARNING]
    assert firsts[0].budget_left > 0.8
    fast, _ = run(book, alerts, start=now, seconds=2 * HOUR, every=30.0, bad_share=0.5)
    assert [(a.severity, a.state) for _, a in fast] == [
        (Severity.WARNING, AlertState.RESOLVED),
        (Severity.CRITICAL, AlertState.FIRING),
    ]


def test_an_alert_is_told_once_then_again_after_hours_then_as_over():
    book, alerts = made(repeat_after=HOUR)
    told, now = run(book, alerts, start=0.0, seconds=2.5 * HOUR, every=10.0, bad_share=1.0)
    assert [alert.state for _, alert in told] == [AlertState.FIRING] * 3
    assert len(alerts.firing()) == 1
    # The fast rules forget within minutes, the slow one within the six hours of its short window.
    told, _ = run(book, alerts, start=now, seconds=8 * HOUR, every=10.0, bad_share=0.0)
    changes = [(a.severity, a.state) for _, a in told if a.state is AlertState.RESOLVED]
    assert changes == [
        (Severity.CRITICAL, AlertState.RESOLVED),
        (Severity.WARNING, AlertState.RESOLVED),
    ]
    assert alerts.firing() == []
    assert [a.severity for a in alerts.past()] == [Severity.WARNING, Severity.CRITICAL]
    assert all(a.ended is not None for a in alerts.past())


def test_a_burn_that_comes_and_goes_is_one_alert():
    book, alerts = made(resolve_after=600.0, min_bad=1)
    told, now = [], 0.0
    for share in (1.0, 0.0) * 6:
        more, now = run(book, alerts, start=now, seconds=400.0, every=10.0, bad_share=share)
        told += more
    assert len([a for _, a in told if a.state is AlertState.RESOLVED]) == 0
    assert len(told) == 1


def test_one_slow_request_in_a_quiet_night_is_no_alert():
    book, alerts = made()
    for now in (10.0, 20.0, 30.0, 40.0):
        book.note(ended(ttft=9.0), now)
        assert alerts.update(book.reports(now), now, now) == []
    book.note(ended(ttft=9.0), 50.0)
    assert len(alerts.update(book.reports(50.0), 50.0, 50.0)) == 1


def test_a_loose_target_can_be_broken_too():
    loose = Objective(name="loose", measure=Measure.TTFT, threshold=0.5, target=0.5)
    book, alerts = made(loose)
    told, _ = run(book, alerts, start=0.0, seconds=HOUR, every=10.0, bad_share=1.0)
    assert told[0][1].severity is Severity.CRITICAL


def test_an_objective_that_is_taken_away_ends_its_alert_and_others_keep_their_counts():
    stays = Objective(name="stays", measure=Measure.AVAILABILITY)
    config = AlertsConfig()
    book, alerts = SloBook([TTFT, stays], config, 0.0), Alerts(config)
    run(book, alerts, start=0.0, seconds=600.0, every=1.0, bad_share=1.0)
    book.configure([stays], config, 600.0)
    (over,) = alerts.update(book.reports(600.0), 600.0, 600.0)
    assert over.state is AlertState.RESOLVED
    (report,) = book.reports(600.0)
    assert (report.slo, report.good) == ("stays", 600)


def test_the_worst_of_the_last_minute_is_told_to_scalers():
    rules = (BurnRule(severity=Severity.WARNING, burn=2.0, budget=0.5),)
    book = SloBook(
        [TTFT, Objective(name="all", measure=Measure.AVAILABILITY, target=0.5)],
        AlertsConfig(rules=rules),
        0.0,
    )
    assert book.worst_recent("m", 0.0) is None
    book.note(ended(ttft=0.1), 1.0)
    book.note(ended(ttft=0.9), 2.0)
    worst = book.worst_recent("m", 3.0)
    assert worst is not None
    assert (worst.slo, worst.recent) == ("ttft", 0.5)
    assert book.worst_recent("m", 1000.0) is None
    assert book.worst_recent("another", 3.0) is None
