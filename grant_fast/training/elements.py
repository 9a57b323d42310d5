"""Elements that a network has not learned about, among molecules in OGB's numbers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import few
from ..graphs import PackedGraphs

#: What OGB's first column of an atom counts: atomic numbers from 1, then atoms of no element.
_ELEMENTS = (
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se "
    "Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb "
    "Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm "
    "Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og *"
)
SYMBOLS = _ELEMENTS.split()
#: RDKit leaves out a hydrogen that is nothing but the neighbour of a heavy atom.
_HYDROGEN = "H, as deuterium or a hydrogen of its own,"


def elements_of(x: Tensor) -> tuple[int, ...]:
    """The elements of atoms, [n, 9] in OGB's numbers: each once, as OGB counts them."""
    element = x[:, 0]
    if element.dtype != torch.uint8:  # that of packed atoms, which `unique` would sort
        return tuple(element.long().unique().tolist())
    return tuple(element.bincount().nonzero().flatten().tolist())


def unseen_elements(
    graphs: PackedGraphs, seen: Sequence[int], places: str, where: str = "in training"
) -> list[str]:
    """That molecules have an element that none in training had, in a line.

    Args:
        graphs: what is predicted.
        seen: the elements of training; none where they are not known.
        places: what the graphs' ids count, such as "row".
        where: they were seen, or not.
    """
    element = graphs.x[:, 0]
    known = torch.tensor(sorted(seen), dtype=element.dtype, device=element.device)
    new = torch.isin(element, known, invert=True).nonzero().flatten()
    if not seen or not len(new):
        return []
    place = graphs.ids[torch.searchsorted(graphs.ptr, new, right=True) - 1]
    found = torch.stack([place, element[new].long()], 1).unique(dim=0).tolist()
    names = [_HYDROGEN, *SYMBOLS[1:]]
    shown = few([f"{names[number]} in {places} {place}" for place, number in found])
    count = len({place for place, _ in found})
    have, them = ("molecule has", "it") if count == 1 else ("molecules have", "them")
    return [
        f"{count} {have} an element that no molecule {where} had ({shown}), so what is "
        f"predicted for {them} means little"
    ]
