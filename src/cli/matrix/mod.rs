//! `xcheck matrix`: judges all combinations of models, formats, engines and commits, and shows them in one
//! table.

mod cell_worker;
mod inputs;
mod matrix_folder;

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::Args;

use crate::cli::for_programs_was_told;
use crate::cli::names::{command, plain_name};
use crate::cli::options::OutputFormat;
use crate::cli::output::REPORTS;
use crate::cli::terminal::{self, say, tell};
use crate::error::{Error, Result};
use crate::matrix::{CellResult, CellStatus, ComparisonMatrix, MatrixPlan, json, table};
use crate::verdict::Verdict;
use cell_worker::CellWorker;
use matrix_folder::MatrixFolder;

/// Arguments of `xcheck matrix`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The exit code is that of the worst cell; a known failure that fails as expected counts as a pass. \
docs/how-to/matrix.md describes the fields of the file.")]
pub(crate) struct MatrixArgs {
    /// TOML file: the axes, the command of a cell, and the known failures
    #[arg(value_name = "CELLS")]
    cells: PathBuf,
    /// Folder for the matrix and its reports [default: reports/matrix-<file>]
    ///
    /// xcheck writes matrix.json, matrix.md, matrix.html and the reports of the cells to this folder.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Number of cells to run at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    /// Run every cell again
    ///
    /// By default, a cell whose command, build and input files are unchanged keeps its report.
    #[arg(long)]
    fresh: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = OutputFormat::Table)]
    format: OutputFormat,
}

/// Runs all cells and prints the table.
pub(crate) fn run(args: &MatrixArgs) -> Result<Verdict> {
    let place = MatrixFolder::open(&args.folder())?;
    let plan = MatrixPlan::read(&args.cells)?;
    for cell in &plan.cells {
        inputs::check(&cell.command(&place.made(cell).to_string_lossy()))
            .map_err(|problem| cell.refuse(&problem))?;
    }
    let jobs = usize::from(args.jobs).min(plan.cells.len());
    let work = CellWorker::new(&plan, &place, args.fresh, jobs)?;
    let matrix = ComparisonMatrix { command: command(), plan: &plan, done: all(&plan, &work, jobs) };
    place.write(&matrix)?;
    match args.format {
        OutputFormat::Json => {
            terminal::document(&json(&matrix));
            for_programs_was_told();
        }
        OutputFormat::Table => {
            let folder = place.shown();
            terminal::painted(&format!("{}\n", table(&matrix, &folder, stdout().is_terminal()).trim_end()));
            say!("report: {folder}/matrix.html");
        }
    }
    matrix.standing().verdict().ok_or_else(|| without_verdict(&matrix))
}

impl MatrixArgs {
    /// Returns the output folder. It depends on the arguments only, so that an old table is removed even
    /// if the definition file is invalid.
    fn folder(&self) -> PathBuf {
        let name = self.cells.file_stem().unwrap_or_default().to_string_lossy();
        let usual = || PathBuf::from(REPORTS).join(plain_name(&format!("matrix-{name}")));
        self.report.clone().unwrap_or_else(usual)
    }
}

/// Runs all cells with `jobs` workers. The results are in the order of the cells.
fn all<'p>(plan: &'p MatrixPlan, work: &CellWorker<'p>, jobs: usize) -> Vec<CellResult<'p>> {
    let (next, finished) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        while let Some((at, cell)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, plan.cells.get(at)?)))
        {
            let done = work.of(cell);
            let mut finished = finished.lock().unwrap_or_else(PoisonError::into_inner);
            finished.push((at, done));
            let (count, total) = (finished.len(), plan.cells.len());
            if let Some((_, done)) = finished.last() {
                tell(count, total, done);
            }
        }
    };
    thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(worker))));
    let mut finished = finished.into_inner().unwrap_or_else(PoisonError::into_inner);
    finished.sort_by_key(|(at, _)| *at);
    finished.into_iter().map(|(_, done)| done).collect()
}

/// Prints the progress.
fn tell(count: usize, total: usize, done: &CellResult) {
    let known = if done.was_run { "" } else { ", cached" };
    tell!("{count}/{total} {}: {}{known}", done.cell.words(), done.standing().name());
}

fn without_verdict(matrix: &ComparisonMatrix) -> Error {
    let cells: Vec<String> = matrix.that_are(CellStatus::Error).map(|done| done.cell.words()).collect();
    let (count, first) = (cells.len(), cells.first().cloned().unwrap_or_default());
    Error::Usage(format!("{count} of {} cells have no verdict, the first {first}", matrix.done.len()))
}
