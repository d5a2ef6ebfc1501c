"""The overrides of an HTTP application, beside the deployed and agreed values."""

from __future__ import annotations

from tidegate.console.agreement_states import agreement_in
from tidegate.console.model import HostedView
from tidegate.console.person import Person
from tidegate.console.sight import in_time
from tidegate.core.hosting import Service
from tidegate.core.users import Right


async def hosted_service(person: Person, name: str) -> Service | None:
    """Return the service as stored now; None if it is missing, or invisible to the user."""
    if person.store is None or not person.may(Right.SEE, name):
        return None
    return next((o for o in await in_time(person.store.services()) if o.spec.name == name), None)


def hosted_view(service: Service) -> HostedView:
    """Return the view of a service; an unreadable agreement sets no bounds."""
    agreement = agreement_in(service.spec.agreement, service.spec.name)
    agreed = None if agreement is None else agreement.resources
    return HostedView(
        by_hand=service.by_hand,
        concurrency=service.spec.concurrency,
        agreed_min=1 if agreed is None else max(agreed.replicas_min, 1),
        agreed_max=None if agreed is None else agreed.replicas_max,
    )
