"""Data sets: scikit-learn's digits, which need no download, and image data sets from their official files."""

from evenstep.data.digits import digits
from evenstep.data.split import Split
from evenstep_research.data.augment import Moves, augment, draw_moves, moved
from evenstep_research.data.cifar import cifar10, cifar100
from evenstep_research.data.fetch import Fetched, fetch
from evenstep_research.data.folder import FileCheck, FolderCheck, check_folder, load_folder
from evenstep_research.data.imagenet import image_folder, imagenet, imagenet16_120
from evenstep_research.data.official import DATA_SETS, Archive, DataSet, OfficialFile, Version

__all__ = [
    "DATA_SETS",
    "Archive",
    "DataSet",
    "Fetched",
    "FileCheck",
    "FolderCheck",
    "Moves",
    "OfficialFile",
    "Split",
    "Version",
    "augment",
    "check_folder",
    "cifar10",
    "cifar100",
    "digits",
    "draw_moves",
    "fetch",
    "image_folder",
    "imagenet",
    "imagenet16_120",
    "load_folder",
    "moved",
]
