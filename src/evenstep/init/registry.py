"""The initialisations by name."""

from __future__ import annotations

from collections.abc import Mapping

from evenstep.arguments import require_choice
from evenstep.init.conserve import Conserve
from evenstep.init.degree import Degree
from evenstep.init.he import He
from evenstep.init.initialisation import Initialisation
from evenstep.init.keep import Keep

INITS: Mapping[str, Initialisation] = {init.name: init for init in (Conserve(), Degree(), He(), Keep())}


def initialisation(init: str | Initialisation) -> Initialisation:
    """Return an initialisation given by name or as a value; raise if there is none of that name.

    >>> initialisation("he")
    He(name='he', tied='smallest', readout_power=1.0, gain=2.0)
    """
    if isinstance(init, Initialisation):
        return init
    return INITS[require_choice("init", init, INITS)]
