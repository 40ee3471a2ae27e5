"""Chains of disturbances along one compile after another, and what must hold after each and at the end.

Moments are drawn over the gaps between the events of an undisturbed compile, LEAST in every stage. A chain is one compile that is disturbed at
several moments, going on with --resume each time. After every disturbance: under the public names lies nothing, or something that verifies.
After a chain: the undisturbed result, and no hidden file left. `Broken` at the first thing that does not hold.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from .job import Clock, Job, Undisturbed, check, undisturbed

LEAST = 2  # disturbances in every stage
ROUNDS = 10  # of chains, until every stage has had them
PUBLISHED = (0, 4)  # exit codes

Disturb = Callable[[Job, subprocess.Popen[bytes]], int]  # does it, checks what is told, returns the exit code


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """`delay` seconds into the n-th gap."""

    gap: int
    delay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """What to do how often; `chain` disturbances along one compile."""

    disturb: Disturb
    times: int = 40
    chain: int = 5
    seed: int = 0
    tell: Callable[[str], object] = lambda line: None


@dataclass(slots=True)
class Report:
    """Disturbances by stage; of all chains together the processor and wall seconds; the longest time from a disturbance to the end."""

    plan: Undisturbed
    stages: Counter[str] = field(default_factory=Counter)
    chains: int = 0
    cpu: float = 0.0
    wall: float = 0.0
    slowest: float = 0.0

    @property
    def times(self) -> int:
        return self.stages.total()

    def missing(self) -> list[str]:
        """Stages that have had too few, as often as they lack one."""
        return [stage for stage in self.plan.stages for _ in range(LEAST - self.stages[stage])]

    def lines(self) -> Iterator[str]:
        """For people."""
        plan, times = self.plan, max(1, self.times)
        events = Counter(name.partition(".")[0] for name, _ in plan.events)
        yield f"undisturbed: {plan.seconds:.1f} s ({plan.cpu:.1f} s of processor), exit {plan.result.code}, root {plan.result.payload_root[:12]}"
        yield "events: " + ", ".join(f"{stage} {n}" for stage, n in events.items())
        yield f"disturbed {self.times} times in {self.chains} compiles: " + ", ".join(f"{stage} {n}" for stage, n in self.stages.items())
        lost = [(total - self.chains * once) / times for total, once in ((self.cpu, plan.cpu), (self.wall, plan.seconds))]
        yield f"lost each time, start included: {lost[0]:.1f} s of processor, {lost[1]:.1f} s of wall time"
        yield f"from disturbance to end: at most {self.slowest:.2f} s"


def soak(job: Job, how: Soak) -> Report:
    """Disturb until `times` are reached and every stage has had LEAST."""
    fresh(job)
    report, rng = Report(undisturbed(job)), random.Random(how.seed)
    fresh(job)
    for _ in range(ROUNDS):
        missing, left = report.missing(), how.times - report.times
        if left <= 0 and not missing:
            return report
        moments = [moment for moment, stage in draw(report.plan, max(left, 0), rng) if left > 0 or stage in missing]
        rng.shuffle(moments)
        for at in range(0, len(moments), how.chain):
            run_chain(job, moments[at : at + how.chain], how.disturb, report)
            how.tell(f"{report.times} of {how.times}\n")
            fresh(job)
    check(not report.missing(), f"after {ROUNDS} rounds too few in a stage: {report.stages}")
    return report


def draw(plan: Undisturbed, times: int, rng: random.Random) -> list[tuple[Moment, str]]:
    """At least `times` moments with their stages: LEAST in every stage, the others anywhere."""
    gaps = range(len(plan.events) + 1)
    by_stage = {stage: [n for n in gaps if plan.gap(n)[0] == stage] for stage in plan.stages}
    chosen = [rng.choice(by_stage[stage]) for stage in plan.stages for _ in range(LEAST)]
    chosen += [rng.choice(gaps) for _ in range(times - len(chosen))]
    return [(Moment(n, rng.uniform(0, plan.gap(n)[1])), plan.gap(n)[0]) for n in chosen]


def fresh(job: Job) -> None:
    """An empty output folder."""
    folder = job.target.parent
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():  # the folder itself may be mounted
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def run_chain(job: Job, moments: Sequence[Moment], disturb: Disturb, report: Report) -> None:
    """One compile, disturbed at each of `moments` that it does not get past before; then to its end."""
    seen: dict[str, float] = {}
    resume, started, code = False, report.times, 1
    for moment in [*sorted(moments), None]:
        clock = Clock()
        process = job.start(resume=resume)
        resume = True
        if job.watch(process, _reached(job, report.plan, moment, seen), seen):
            stage, at = report.plan.place(seen), time.monotonic()
            code = disturb(job, process)
            report.slowest = max(report.slowest, time.monotonic() - at)
            report.stages[stage] += 1
        else:
            code = process.returncode
        report.cpu, report.wall = report.cpu + clock.cpu(), report.wall + clock.wall()
        if code in PUBLISHED:
            break
        job.require_whole()
    report.chains += 1
    result = job.result(code)
    check(result == report.plan.result, f"{result} after {report.times - started} times, undisturbed {report.plan.result}")


def _reached(job: Job, plan: Undisturbed, moment: Moment | None, seen: dict[str, float]) -> Callable[[], bool]:
    """Has the moment come? A gap begins with its event; in a process that goes on in the middle of it, when that says its first word."""
    if moment is None:
        return lambda: False
    later = {name for name, _ in plan.events[max(0, moment.gap - 1) :]}
    began: list[float] = []

    def reached() -> bool:
        if not began and job.says.stat().st_size and (moment.gap == 0 or not later.isdisjoint(seen)):
            began.append(time.monotonic())
        return bool(began) and time.monotonic() - began[0] >= moment.delay

    return reached
