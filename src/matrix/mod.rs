//! Many comparisons in one table: every combination of some axes is a cell, a command of its own, which is run once and
//! then known by the content of all that it reads.

mod axis;
mod children;
mod done;
mod html;
mod json;
mod key;
mod markdown;
mod name;
mod pattern;
mod plan;
mod table;
mod template;
mod written;

pub use axis::{Axis, Expected};
pub use children::Children;
pub use done::{Done, Found, Standing};
pub use html::html;
pub use json::json;
pub use key::Inputs;
pub use markdown::markdown;
pub use plan::{Cell, Make, Plan};
pub use table::table;

use crate::report::{ArchitectureSummary, rolled_up};

/// A matrix that was gone through.
#[derive(Clone, Debug)]
pub struct Matrix<'p> {
    /// The arguments xcheck was called with, without the program's name.
    pub command: Vec<String>,
    /// The plan.
    pub plan: &'p Plan,
    /// Results of the cells, in the order of the plan.
    pub done: Vec<Done<'p>>,
}

impl Matrix<'_> {
    /// The worst over all cells.
    pub fn standing(&self) -> Standing {
        self.done.iter().map(Done::standing).max().unwrap_or(Standing::Inconclusive)
    }

    /// The figures of each architecture, over all cells.
    pub fn by_architecture(&self) -> Vec<ArchitectureSummary> {
        let found = self.done.iter().filter_map(|done| done.found.as_ref().ok());
        rolled_up(found.flat_map(|found| found.architectures.iter().cloned()))
    }

    /// Returns the cells with this result.
    pub fn that_are(&self, standing: Standing) -> impl Iterator<Item = &Done<'_>> {
        self.done.iter().filter(move |done| done.standing() == standing)
    }

    /// The values that cells have on some axes, in order.
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

    /// The cell in a row and a column, if it is one.
    fn at(&self, row: &[&str], column: &[&str]) -> Option<&Done<'_>> {
        let Plan { rows, columns, .. } = self.plan;
        let is_there = |cell: &Cell| cell.values_on(rows) == row && cell.values_on(columns) == column;
        self.done.iter().find(|done| is_there(done.cell))
    }

    /// "3 pass, 1 known failure": how many there are of each standing, the worst first.
    pub fn tally(&self) -> String {
        let told = Standing::ALL.iter().rev().filter_map(|&standing| {
            let count = self.that_are(standing).count();
            (count > 0).then(|| format!("{count} {}", standing.name()))
        });
        told.collect::<Vec<_>>().join(", ")
    }
}
