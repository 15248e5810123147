//! Execution of one cell of a matrix, or reading of its cached report.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::SystemTime;

use chrono::{DateTime, Utc};

use crate::cli::matrix::inputs::{of_command, of_make, or_unknown};
use crate::cli::matrix::matrix_folder::{self, MatrixFolder};
use crate::cli::{environment, exit_status};
use crate::disk_cache::DiskCache;
use crate::error::{Error, Result};
use crate::matrix::{
    CellInputs, CellResult, CellSummary, ChildProcesses, MakeCommand, MatrixCell, MatrixPlan,
};
use crate::report::{self, ReportContent, ReportDir};
/// Runs the cells of a matrix, or reads their cached reports.
pub(crate) struct CellWorker<'w> {
    plan: &'w MatrixPlan,
    place: &'w MatrixFolder,
    is_fresh: bool,
    jobs: usize,
    kept: DiskCache,
    children: ChildProcesses,
    program: PathBuf,
    build: String,
}

impl<'w> CellWorker<'w> {
    /// Makes a worker.
    ///
    /// # Errors
    /// If this program's file cannot be read; its hash is a part of every cell's key.
    pub(crate) fn new(
        plan: &'w MatrixPlan,
        place: &'w MatrixFolder,
        is_fresh: bool,
        jobs: usize,
    ) -> Result<Self> {
        let here = Path::new("xcheck");
        let program = env::current_exe().map_err(Error::io("find", here))?;
        let children = ChildProcesses::new().map_err(Error::io("wait for signals of", here))?;
        let kept = DiskCache::from_env()?;
        let mut inputs = CellInputs::new(&kept);
        inputs.content(&program)?;
        inputs.say("program", &report::program().to_string());
        let build = inputs.key().map_err(Error::Usage)?;
        Ok(Self { plan, place, is_fresh, jobs, children, program, build, kept })
    }

    /// Runs a cell. Errors are recorded as the result of the cell.
    pub(crate) fn of(&self, cell: &'w MatrixCell) -> CellResult<'w> {
        let made = self.place.made(cell);
        let command = cell.command(&made.to_string_lossy());
        let mut done = CellResult {
            cell,
            command,
            found: Err(String::new()),
            was_run: true,
            key: Err("the cell was not run".to_owned()),
            has_report: false,
        };
        done.found = self.found(&mut done, &made).unwrap_or_else(|error| Err(error.to_string()));
        done.has_report = self.place.report(cell).join("report.json").is_file();
        done
    }

    fn found(&self, done: &mut CellResult, made: &Path) -> Result<Result<CellSummary, String>> {
        let cell = done.cell;
        let folder = self.place.report(cell);
        if let Some(make) = cell.make(&made.to_string_lossy())
            && let Err(problem) = self.make(cell, &make, made)?
        {
            matrix_folder::unseal(&folder)?;
            ReportDir::create(&folder)?;
            return Ok(Err(problem));
        }
        done.key = self.key(cell, &done.command)?;
        if let Ok(key) = &done.key
            && !self.is_fresh
            && matrix_folder::is_known(&folder, key)
            && let Ok(found) = read(&folder)
        {
            done.was_run = false;
            return Ok(Ok(found));
        }
        self.run(done, &folder)
    }

    fn run(&self, done: &CellResult, folder: &Path) -> Result<Result<CellSummary, String>> {
        if folder.is_dir() {
            matrix_folder::unseal(folder)?;
        }
        ReportDir::create(folder)?;
        let mut command = Command::new(&self.program);
        command.args(&done.command).arg("--report").arg(folder);
        let log = folder.join("run.log");
        let found = match self.start(&mut command, &log)? {
            None => return Ok(Err(self.too_long("it", &log))),
            Some(status) => {
                read(folder).and_then(|found| agreed(found, status)).map_err(|problem| match problem {
                    problem if problem.is_empty() => ended(status, &log),
                    problem => problem,
                })
            }
        };
        // If an input changed during the run, the report may be about the old or the new content, so it is
        // not cached.
        if let (Ok(_), Ok(key)) = (&found, &done.key)
            && self.key(done.cell, &done.command)?.as_ref() == Ok(key)
        {
            matrix_folder::seal(folder, key)?;
        }
        Ok(found)
    }

    /// Runs the cell's `make` command, unless its output is in the cache.
    fn make(&self, cell: &MatrixCell, make: &MakeCommand, folder: &Path) -> Result<Result<(), String>> {
        let mut inputs = CellInputs::new(&self.kept);
        // The output path is not included, since it is not an input of the command.
        let read = cell.make("").map_or(Ok(()), |make| of_make(&make, &mut inputs));
        or_unknown(read, &mut inputs);
        reads(cell, &mut inputs)?;
        let (key, report) = (inputs.key().ok(), self.place.report(cell));
        // If the output was deleted since, it is made again.
        let is_there = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
        if !self.is_fresh && is_there && key.as_ref().is_some_and(|key| matrix_folder::is_made(&report, key))
        {
            return Ok(Ok(()));
        }
        matrix_folder::begin_making(&report, folder)?;
        let log = report.join("make.log");
        let mut command = Command::new(&make.words[0]);
        command.args(&make.words[1..]);
        match self.start(&mut command, &log) {
            Err(error) => return Ok(Err(format!("make: {error}"))),
            Ok(None) => return Ok(Err(self.too_long("make", &log))),
            Ok(Some(status)) if !status.success() => {
                return Ok(Err(format!("make: {}", ended(status, &log))));
            }
            Ok(Some(_)) => {}
        }
        let is_empty = fs::read_dir(folder).map_err(Error::io("list", folder))?.next().is_none();
        if is_empty {
            return Ok(Err(format!("make wrote nothing to {}", folder.display())));
        }
        key.map_or(Ok(()), |key| matrix_folder::keep_made(&report, &key))?;
        Ok(Ok(()))
    }

    /// Returns the key of a cell, or the reason why it has none.
    fn key(&self, cell: &MatrixCell, command: &[String]) -> Result<Result<String, String>> {
        let mut inputs = CellInputs::new(&self.kept);
        inputs.say("build", &self.build);
        for (name, value) in environment::variables() {
            inputs.say(name, &value.to_string_lossy());
        }
        // Waivers in a baseline can expire on a day, so today's date is an input.
        if command.iter().any(|word| word.starts_with("--baseline")) {
            let today = DateTime::<Utc>::from(SystemTime::now()).date_naive();
            inputs.say("day", &today.to_string());
        }
        let read = of_command(command, &mut inputs);
        or_unknown(read, &mut inputs);
        reads(cell, &mut inputs)?;
        Ok(inputs.key())
    }

    fn start(&self, command: &mut Command, log: &Path) -> Result<Option<ExitStatus>> {
        let said = File::create(log).map_err(Error::io("create", log))?;
        let also = said.try_clone().map_err(Error::io("create", log))?;
        command.stdin(self.place.stdin()?).stdout(said).stderr(also);
        const THREADS: &str = "RAYON_NUM_THREADS";
        if self.jobs > 1 && env::var_os(THREADS).is_none() {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            command.env(THREADS, cores.div_ceil(self.jobs).to_string());
        }
        let program = PathBuf::from(command.get_program());
        self.children.run(command, self.plan.limit).map_err(Error::io("start", &program))
    }

    fn too_long(&self, what: &str, log: &Path) -> String {
        let seconds = self.plan.limit.as_secs();
        format!("{what} was stopped after {seconds} s, its time limit; its output is in {}", log.display())
    }
}

/// Reads a report. The error is empty if there is no report.
fn read(folder: &Path) -> Result<CellSummary, String> {
    let file = folder.join("report.json");
    if !file.exists() {
        return Err(String::new());
    }
    match report::read(&file) {
        Ok(ReportContent::Report(report)) => Ok(CellSummary::of(&report)),
        Ok(ReportContent::Refused(message)) => Err(message),
        Err(error) => Err(error.to_string()),
    }
}

/// Accepts a report only if it agrees with the program's exit status.
fn agreed(found: CellSummary, status: ExitStatus) -> Result<CellSummary, String> {
    match status.code() == Some(exit_status(found.verdict).into()) {
        true => Ok(found),
        false => Err(format!("the command ended with {status}, but its report says {}", found.verdict)),
    }
}

fn ended(status: ExitStatus, log: &Path) -> String {
    match matrix_folder::last_words(log) {
        words if words.is_empty() => format!("the command ended with {status} and no output"),
        words => format!("the command ended with {status}: {words}"),
    }
}

fn reads(cell: &MatrixCell, inputs: &mut CellInputs) -> Result<()> {
    cell.reads().iter().try_for_each(|path| inputs.content(OsStr::new(path).as_ref()))
}
