//! What a cross-check found: plain data, for reports.

use crate::checkpoint::Checkpoint;
use crate::compare::{Measurement, Row, Verdict};
use crate::dump::Producer;

/// Which errors were measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The ordinary run and the teacher-forced one.
    Both,
    /// The ordinary run only: inherited and introduced error together.
    Propagated,
    /// The teacher-forced run only: introduced error.
    Isolated,
}

impl Mode {
    /// The word used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Both => "both",
            Mode::Propagated => "propagated",
            Mode::Isolated => "isolated",
        }
    }
}

/// How much of what should have been compared was compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coverage {
    /// Tapped values that were compared.
    pub taps_compared: usize,
    /// Tapped values that the selection and the reference ask for.
    pub taps_expected: usize,
    /// Numbers that were compared.
    pub elements: usize,
    /// What was left out, and why; each a short sentence.
    pub skipped: Vec<String>,
}

/// The comparison with one reference.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The reference's name: of the shipped dump, or of its file.
    pub name: String,
    /// Who made the reference.
    pub producer: Producer,
    /// What our engine ran; for two dumps, the producer of the other one.
    pub numerics: String,
    /// Which errors were measured.
    pub mode: Mode,
    /// The verdict over all rows and the coverage.
    pub verdict: Verdict,
    /// A sentence where the verdict is not a pass.
    pub reason: Option<String>,
    /// What a reader should know although it changes no verdict: rounding that grew, ties …
    pub notes: Vec<String>,
    /// How much was compared.
    pub coverage: Coverage,
    /// Every compared value, in data-flow order.
    pub rows: Vec<Row>,
}

/// One checkpoint over all its taps, layers and passes.
#[derive(Clone, Debug)]
pub struct Summary<'o> {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The verdict over its rows; inconclusive where nothing was compared.
    pub verdict: Verdict,
    /// The row with the worst judged error; a failing one where there is one. `None` if nothing was compared.
    pub worst: Option<&'o Row>,
    /// The row with the largest ordinary error.
    pub worst_ordinary: Option<&'o Row>,
    /// The row with the largest introduced error.
    pub worst_introduced: Option<&'o Row>,
}

impl Outcome {
    /// The first row in data-flow order that fails.
    pub fn first_divergence(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.verdict == Verdict::Fail)
    }

    /// One summary per checkpoint that was compared or should have been: the input only where it was compared.
    pub fn summaries(&self, checkpoints: &[Checkpoint]) -> Vec<Summary<'_>> {
        checkpoints.iter().map(|&checkpoint| self.summary(checkpoint)).collect()
    }

    fn summary(&self, checkpoint: Checkpoint) -> Summary<'_> {
        let rows: Vec<&Row> = self.rows.iter().filter(|row| row.checkpoint() == checkpoint).collect();
        let failing = |row: &&&Row| !row.verdict.is_good();
        let worst = worst_by(rows.iter().filter(failing).copied(), Row::judged);
        Summary {
            checkpoint,
            verdict: Verdict::over(rows.iter().map(|row| row.verdict)),
            worst: worst.or_else(|| worst_by(rows.iter().copied(), Row::judged)),
            worst_ordinary: worst_by(rows.iter().copied(), |row| row.ordinary.as_ref()),
            worst_introduced: worst_by(rows.iter().copied(), |row| row.introduced.as_ref()),
        }
    }
}

/// The row whose measurement has the largest `max_abs`; NaN is larger than any number.
fn worst_by<'o>(
    rows: impl Iterator<Item = &'o Row>,
    figure: impl Fn(&'o Row) -> Option<&'o Measurement>,
) -> Option<&'o Row> {
    let size = |row: &'o Row| figure(row).map(|found| found.errors.max_abs);
    rows.filter(|row| size(row).is_some()).max_by(|a, b| {
        let (a, b) = (size(a).unwrap_or_default(), size(b).unwrap_or_default());
        a.is_nan().cmp(&b.is_nan()).then(a.total_cmp(&b))
    })
}
