"""Invented eICU tables, as PhysioNet ships them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from fedmap_lab.eicu.extraction import EicuRules, EicuStays, extract_stays
from fedmap_lab.eicu.tables import EicuTables, load_eicu_tables

ROOT = "notes/Progress Notes/Physical Exam/Physical Exam"
VITALS = f"{ROOT}/Constitutional/Vital Sign and Physiological Data"
GCS = f"{ROOT}/Neurologic/GCS"
READINGS = (
    (f"{GCS}/Eyes Score/4", "4"),
    (f"{GCS}/Motor Score/6", "6"),
    (f"{GCS}/Verbal Score/5", "5"),
    (f"{VITALS}/HR/HR Current", "80"),
    (f"{VITALS}/BP (systolic)/BP (systolic) Current", "120"),
    (f"{VITALS}/Resp Rate/Resp Current", "16"),
    (f"{VITALS}/O2 Sat%/O2 Sat% Current", "97"),
)
COLUMNS = {
    "patient": "patientunitstayid uniquepid hospitalid age admissionheight admissionweight "
    "unitdischargeoffset unitdischargestatus gender",
    "hospital": "hospitalid region",
    "diagnosis": "diagnosisid patientunitstayid diagnosisoffset icd9code",
    "medication": "medicationid patientunitstayid drugorderoffset drugstartoffset drugordercancelled "
    "drugname",
    "physicalExam": "physicalexamid patientunitstayid physicalexamoffset physicalexampath physicalexamvalue "
    "physicalexamtext",
}
Cell = str | int | None


@dataclass
class Ward:
    """Invented tables in the making. Each stay is complete until something is taken from it."""

    rows: dict[str, list[tuple[Cell, ...]]] = field(default_factory=lambda: {name: [] for name in COLUMNS})

    def stay(
        self,
        stay: int,
        *,
        patient: str | None = None,
        hospital: int = 1,
        age: str | None = "60",
        left: int = 5000,
        status: str | None = "Alive",
        orders: int = 4,
        codes: int = 3,
        exam: bool = True,
    ) -> Ward:
        person = patient or f"p{stay}"
        self.rows["patient"].append((stay, person, hospital, age, "170", "70.5", left, status, "Female"))
        for number in range(orders):
            self.order(stay, f"Drug {number}")
        for number in range(codes):
            self.diagnosis(stay, f"40{number}.9, I10")
        if exam:
            for path, text in READINGS:
                self.exam(stay, path, text)
        return self

    def order(
        self, stay: int, name: str | None, start: int | str = 10, entered: int = 5, cancelled: str = "No"
    ) -> Ward:
        self._add("medication", stay, entered, start, cancelled, name)
        return self

    def diagnosis(self, stay: int, code: str | None, offset: int = 10) -> Ward:
        self._add("diagnosis", stay, offset, code)
        return self

    def exam(self, stay: int, path: str, text: str, offset: int = 10) -> Ward:
        self._add("physicalExam", stay, offset, path, path.rsplit("/", 1)[-1], text)
        return self

    def hospital(self, number: int, region: str | None) -> Ward:
        self.rows["hospital"].append((number, region))
        return self

    def _add(self, table: str, *cells: Cell) -> None:
        self.rows[table].append((len(self.rows[table]), *cells))

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        for table, columns in COLUMNS.items():
            frame = pd.DataFrame(self.rows[table], columns=columns.split(), dtype=object)
            frame.to_csv(folder / f"{table}.csv.gz", index=False)
        return folder

    def load(self, folder: Path) -> EicuTables:
        return load_eicu_tables(self.write(folder))

    def extract(self, folder: Path, rules: EicuRules | None = None) -> EicuStays:
        return extract_stays(self.load(folder), rules or EicuRules())
