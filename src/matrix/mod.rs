//! Comparison matrices: every combination of some axes is a cell with its own command. The report of a cell
//! is cached, with a hash of all its inputs as the key.

mod axis;
mod cell_result;
mod child_processes;
mod definition;
mod folder_names;
mod html;
mod json;
mod key;
mod markdown;
mod pattern;
mod plan;
mod table;
mod template;

pub(crate) use cell_result::{CellResult, CellStatus, CellSummary};
pub(crate) use child_processes::ChildProcesses;
pub use html::html;
pub use json::json;
pub(crate) use key::CellInputs;
pub use markdown::markdown;
pub use plan::MatrixPlan;
pub(crate) use plan::{MakeCommand, MatrixCell};
pub use table::table;

use crate::report::{ArchitectureSummary, rolled_up};

/// A matrix after all its cells were run.
#[derive(Clone, Debug)]
pub struct ComparisonMatrix<'p> {
    /// Command-line arguments, without the program name.
    pub(crate) command: Vec<String>,
    pub(crate) plan: &'p MatrixPlan,
    /// Results of the cells, in the order of the plan.
    pub(crate) done: Vec<CellResult<'p>>,
}

impl ComparisonMatrix<'_> {
    /// Returns the worst status of all cells.
    pub(crate) fn standing(&self) -> CellStatus {
        self.done.iter().map(CellResult::standing).max().unwrap_or(CellStatus::Inconclusive)
    }

    /// Returns the results per architecture, over all cells.
    pub(crate) fn by_architecture(&self) -> Vec<ArchitectureSummary> {
        let found = self.done.iter().filter_map(|done| done.found.as_ref().ok());
        rolled_up(found.flat_map(|found| found.architectures.iter().cloned()))
    }

    pub(crate) fn that_are(&self, standing: CellStatus) -> impl Iterator<Item = &CellResult<'_>> {
        self.done.iter().filter(move |done| done.standing() == standing)
    }

    /// Returns the distinct values of the cells on some axes, in order.
    fn values_on(&self, axes: &[usize]) -> Vec<Vec<&str>> {
        let mut known: Vec<Vec<&str>> = Vec::new();
        for done in &self.done {
            let values = done.cell.values_on(axes);
            if !known.contains(&values) {
                known.push(values);
            }
        }
        known
    }

    /// Returns the cell at a row and column; `None` if this combination is excluded.
    fn at(&self, row: &[&str], column: &[&str]) -> Option<&CellResult<'_>> {
        let MatrixPlan { rows, columns, .. } = self.plan;
        let is_there = |cell: &MatrixCell| cell.values_on(rows) == row && cell.values_on(columns) == column;
        self.done.iter().find(|done| is_there(done.cell))
    }

    /// Returns the number of cells per status, worst first, such as "3 pass, 1 known failure".
    pub(crate) fn tally(&self) -> String {
        let told = CellStatus::ALL.iter().rev().filter_map(|&standing| {
            let count = self.that_are(standing).count();
            (count > 0).then(|| format!("{count} {}", standing.name()))
        });
        told.collect::<Vec<_>>().join(", ")
    }
}
