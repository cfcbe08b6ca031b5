"""`peers`: every comparison with another server, in one go, one after the other; inside each the sides take turns."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from bench.load import LoadFailed
from bench.measurement import Measurement, PeerMissing, Setup
from bench.processes import ServerFailed
from bench.result import write
from bench.run import Conditions, arguments, run
from bench.summary import note_left_out, summary

REPEATED_AS = ("alternations", "repetitions", "rounds")
"""What measurements call the number of their turns."""


def planned(
    measurements: Sequence[Measurement], *, quick: bool, alternations: int | None
) -> list[tuple[Measurement, argparse.Namespace, float]]:
    """What is compared, with which arguments, and about how many seconds each takes."""
    plan = []
    for measurement in measurements:
        options = arguments(measurement, measurement.quick if quick else ())
        for name in REPEATED_AS:
            if alternations is not None and hasattr(options, name):
                setattr(options, name, alternations)
        plan.append((measurement, options, measurement.seconds(options) if measurement.seconds else 0.0))
    return plan


def compare_all(
    measurements: Sequence[Measurement],
    setup: Setup,
    conditions: Conditions,
    *,
    quick: bool = False,
    alternations: int | None = None,
) -> tuple[list[str], int]:
    """Run them, print the one table, and give the names of those that have a result and the exit status.

    A peer that is not installed is left out, and said so; a server that fails makes the status 1, as errors do.
    """
    plan = planned(measurements, quick=quick, alternations=alternations)
    total, begin = sum(seconds for *_, seconds in plan), time.monotonic()
    setup.say(
        f"{len(plan)} comparisons, about {_minutes(total)} in all: " + ", ".join(m.name for m, *_ in plan)
    )
    done: list[str] = []
    left_out: dict[str, str] = {}
    status, ahead = 0, total
    for number, (measurement, options, seconds) in enumerate(plan, 1):
        setup.say(
            f"\n== {number} of {len(plan)}: {measurement.name}: {measurement.title} (about {_minutes(seconds)}; "
            f"{_minutes(time.monotonic() - begin)} gone, about {_minutes(ahead)} to go)"
        )
        ahead -= seconds
        try:
            result = run(measurement, options, setup, conditions)
        except PeerMissing as missing:
            left_out[measurement.name] = str(missing)
            setup.say(f"!!\n!! {measurement.name} is LEFT OUT: {missing}\n!!")
            continue
        except (ServerFailed, LoadFailed) as error:
            left_out[measurement.name] = f"it failed: {str(error).splitlines()[0]}"
            setup.say(f"!!\n!! {measurement.name} FAILED: {error}\n!!")
            status = 1
            continue
        write(result, setup.out, measurement.table)
        for wrong in result.errors[:3]:
            setup.say(f"!! {measurement.name}: {wrong}")
        status |= bool(result.errors)
        done.append(measurement.name)
    note_left_out(setup.out, left_out)
    print(
        f"\n{summary(setup.out, [m for m, *_ in plan if m.name in done]) or 'nothing was compared'}",
        flush=True,
    )
    return done, status if done else 1


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
