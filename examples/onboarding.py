"""An onboarding saga: work is done, a colleague approves, and a refusal takes the work back.

Run it: `python examples/onboarding.py`
"""

import tempfile
from dataclasses import dataclass
from datetime import timedelta

import ulak
from ulak import SUBMITTER, Lifecycle, Run, TransitionNotAllowed

SOON = timedelta(seconds=30)


@dataclass(frozen=True)
class Hire:
    name: str
    laptop: str


onboarding = ulak.Flow(
    "onboarding",
    Lifecycle(
        "requested",
        {
            "requested": ["account_made"],
            "account_made": ["in_review"],
            "in_review": ["approved", "refused"],
            "approved": ["welcomed"],
        },
        done=["welcomed", "refused"],
    ),
    payload=Hire,
)


@onboarding.stage("requested")
def make_account(run: Run[Hire]) -> str:
    account = f"{run.payload.name.lower()}@example.com"
    print(f"  made {account}")
    return account


@make_account.undo
def delete_account(run: Run[Hire]) -> None:
    print(f"  deleted {run.find_result(make_account)}")


@onboarding.stage("account_made")
def order_laptop(run: Run[Hire]) -> None:
    print(f"  ordered a {run.payload.laptop}")


@order_laptop.undo
def cancel_order(run: Run[Hire]) -> None:
    print(f"  cancelled the {run.payload.laptop}")


review = onboarding.gate(
    "in_review",
    choices={"approve": "approved", "refuse": "refused"},
    refusals={"refuse"},  # "refused" is a good end for the job, and yet the work is taken back
    not_by=SUBMITTER,
)


@onboarding.stage("approved")
def welcome(run: Run[Hire]) -> None:
    said = run.decision(review)
    print(f"  welcomed {run.result(make_account)}, approved by {said.actor}: {said.note}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = ulak.connect(f"sqlite:///{folder}/onboarding.db", flows=[onboarding])
        with engine, engine.working():
            for hire, choice in (
                (Hire("Ada", "laptop"), "approve"),
                (Hire("Bob", "yacht"), "refuse"),
            ):
                print(f"{hire.name}:")
                job = engine.submit(onboarding, hire, actor="manager")
                engine.wait(job.id, until="in_review", timeout=SOON)
                try:
                    engine.decide(job.id, choice, actor="manager")
                except TransitionNotAllowed as error:
                    print(f"  the submitter may not decide: {error.code}")
                engine.decide(job.id, choice, actor="colleague", note="as the policy says")
                print(f"  ended as {engine.wait(job.id, timeout=SOON).state}")


if __name__ == "__main__":
    main()
