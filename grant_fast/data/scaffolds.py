"""Bemis-Murcko scaffolds: what of a molecule are rings and the links between them."""

from typing import Any

from ..errors import require

#: Atoms up to which RDKit finds a scaffold. Its time grows with their cube, to 40 s for the 2,930
#: of 350 amino acids.
_MOST_ATOMS = 100
_BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")


def scaffold_of(molecule: Any) -> str:
    """The scaffold of RDKit's molecule as a SMILES; empty where it has no ring."""
    # RDKit prunes a chain atom by atom, for minutes where it is long.
    if not molecule.GetRingInfo().NumRings():
        return ""
    murcko = require("rdkit.Chem.Scaffolds.MurckoScaffold", "smiles")
    try:
        if molecule.GetNumAtoms() > _MOST_ATOMS and _is_usual(molecule):
            return _pruned(molecule)
        return murcko.MurckoScaffoldSmiles(mol=molecule, includeChirality=False)
    except ValueError:  # without its metal, an aromatic atom is given a hydrogen too many
        return require("rdkit.Chem", "smiles").MolToSmiles(molecule, isomericSmiles=False)


def _is_usual(molecule: Any) -> bool:
    """Whether it has none of what RDKit treats as a case of its own: a bond that closes no ring, as
    a metal's, and an aromatic carbon with a charge."""
    return all(str(bond.GetBondType()) in _BONDS for bond in molecule.GetBonds()) and not any(
        atom.GetFormalCharge() and atom.GetIsAromatic() and atom.GetAtomicNum() == 6
        for atom in molecule.GetAtoms()
    )


def _pruned(molecule: Any) -> str:
    """What RDKit's `MurckoScaffoldSmiles` gives, in a time that grows with the number of atoms."""
    chem = require("rdkit.Chem", "smiles")
    stays = _between_rings(molecule)
    out = chem.RWMol(molecule)
    out.BeginBatchEdit()
    for atom in molecule.GetAtoms():
        at = atom.GetIdx()
        if stays[at]:
            continue
        held = {bond.GetOtherAtomIdx(at): bond.GetBondType() for bond in atom.GetBonds()}
        held = {other: kind for other, kind in held.items() if stays[other]}
        if chem.BondType.DOUBLE not in held.values():  # what hangs on by one stays
            out.RemoveAtom(at)
            for other in held:
                _fill(out.GetAtomWithIdx(other), chem.ChiralType.CHI_UNSPECIFIED)
    out.CommitBatchEdit()
    out.ClearComputedProps()
    out.UpdatePropertyCache()
    chem.GetSymmSSSR(out)
    return chem.MolToSmiles(out, isomericSmiles=False)


def _between_rings(molecule: Any) -> list[bool]:
    """Which atoms are left when those with less than two neighbours fall away, again and again."""
    degree = [atom.GetDegree() for atom in molecule.GetAtoms()]
    stays = [True] * len(degree)
    ends = [at for at, count in enumerate(degree) if count < 2]
    while ends:
        end = ends.pop()
        stays[end] = False
        for neighbour in molecule.GetAtomWithIdx(end).GetNeighbors():
            at = neighbour.GetIdx()
            degree[at] -= 1
            if degree[at] == 1 and stays[at]:
                ends.append(at)
    return stays


def _fill(atom: Any, achiral: Any) -> None:
    """Put hydrogen where an atom has lost a neighbour."""
    if atom.GetIsAromatic() and atom.GetAtomicNum() != 6:
        atom.SetNumExplicitHs(1)
    elif atom.GetNoImplicit() or atom.GetChiralTag() != achiral:
        atom.SetNoImplicit(False)
        atom.SetNumExplicitHs(0)
        atom.SetChiralTag(achiral)
