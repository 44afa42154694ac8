"""How weights are initialised: `conserve`, `degree` (the paper's `eq:dag_init`), `he`, `keep`. No torch."""

from evenstep.init.conserve import Conserve
from evenstep.init.degree import Degree
from evenstep.init.he import He
from evenstep.init.initialisation import Initialisation
from evenstep.init.keep import Keep
from evenstep.init.network import InitialWeights, Network
from evenstep.init.registry import INITS, initialisation

__all__ = [
    "INITS",
    "Conserve",
    "Degree",
    "He",
    "InitialWeights",
    "Initialisation",
    "Keep",
    "Network",
    "initialisation",
]
