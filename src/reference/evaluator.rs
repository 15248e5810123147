//! The worker that evaluates models with torch: the Python package `xcheck.evaluator`, embedded in the program.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::engine::ScriptFile;
use super::environment::PythonEnvironment;
use super::process::{begin_log, reason_of_end};
use super::reference_folder::ReferenceFolder;
use super::watched_output::{WatchedOutput, WatchedProcess};
use crate::error::{Error, ReferenceError, Result};

macro_rules! package {
    ($($name:literal)*) => {
        /// The files of the Python package.
        const PACKAGE: &[ScriptFile] = &[
            $((concat!("xcheck/", $name), include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/python/src/xcheck/", $name))),)*
        ];
    };
}

package! {
    "__init__.py"
    "__main__.py"
    "arrays.py"
    "axes.py"
    "caches.py"
    "candidates.py"
    "checked.py"
    "containers.py"
    "dump.py"
    "errors.py"
    "evaluator/__init__.py"
    "evaluator/__main__.py"
    "evaluator/attention.py"
    "evaluator/bounds.py"
    "evaluator/call.py"
    "evaluator/candidate.py"
    "evaluator/causes/__init__.py"
    "evaluator/causes/bypass.py"
    "evaluator/causes/change.py"
    "evaluator/causes/confirmation.py"
    "evaluator/causes/facts.py"
    "evaluator/causes/fit.py"
    "evaluator/causes/inputs.py"
    "evaluator/causes/keys.py"
    "evaluator/causes/numbers.py"
    "evaluator/causes/operands.py"
    "evaluator/causes/results.py"
    "evaluator/causes/rotations.py"
    "evaluator/causes/round_numbers.py"
    "evaluator/causes/search.py"
    "evaluator/causes/steps.py"
    "evaluator/causes/trial.py"
    "evaluator/causes/weights.py"
    "evaluator/constants.py"
    "evaluator/decompositions.py"
    "evaluator/errors.py"
    "evaluator/evaluation.py"
    "evaluator/forcing.py"
    "evaluator/model.py"
    "evaluator/modules.py"
    "evaluator/operations.py"
    "evaluator/other_choices.py"
    "evaluator/outputs.py"
    "evaluator/products.py"
    "evaluator/protocol.py"
    "evaluator/reductions.py"
    "evaluator/rounding.json"
    "evaluator/rounding.py"
    "evaluator/sentence.py"
    "evaluator/sigma.py"
    "evaluator/tap_forcing.py"
    "evaluator/tap_places.py"
    "evaluator/tap_results.py"
    "evaluator/tap_rounding.py"
    "evaluator/tap_rows.py"
    "evaluator/tap_views.py"
    "evaluator/ties.py"
    "evaluator/tracked.py"
    "evaluator/worker.py"
    "follow.py"
    "frames.py"
    "fused.py"
    "gap.py"
    "guess.py"
    "heads.py"
    "hook.py"
    "judge.py"
    "likelihoods.py"
    "manifest.py"
    "maps.py"
    "modules.py"
    "outputs.py"
    "page.py"
    "passes.py"
    "plugin.py"
    "program.py"
    "py.typed"
    "report.py"
    "safetensors.py"
    "sequences.py"
    "taps.py"
    "testing.py"
    "values.py"
    "watcher.py"
}

/// Time in which a worker must end after its output has ended.
const END: Duration = Duration::from_secs(1);

/// A running worker. Dropping it ends the process.
pub(crate) struct EvaluatorProcess {
    process: WatchedProcess,
    log: PathBuf,
    limit: Duration,
}

impl EvaluatorProcess {
    /// Starts the worker and returns it with its input and output. The worker is killed if it writes nothing for
    /// longer than `limit` during an answer.
    ///
    /// # Errors
    /// If the package cannot be written to the cache, or Python does not start.
    pub(crate) fn start(
        environment: &PythonEnvironment,
        workplace: &ReferenceFolder,
        limit: Duration,
    ) -> Result<(Self, ChildStdin, WatchedOutput)> {
        let files: Vec<(&str, &[u8])> = PACKAGE.iter().map(|(name, text)| (*name, text.as_bytes())).collect();
        let package = workplace.write_out("python", "xcheck", &files)?;
        let log = workplace.log(&format!("evaluator-{}", std::process::id()));
        begin_log(&log)?;
        let told = File::options().append(true).open(&log).map_err(Error::io("write", &log))?;
        let mut command = environment.module("xcheck.evaluator", &package);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(told);
        let program = PathBuf::from(command.get_program());
        let mut child = command.spawn().map_err(Error::io("start", &program))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.expect("stdin and stdout of the worker are pipes");
        let (process, output) = WatchedProcess::new(child, output, limit);
        Ok((Self { process, log, limit }, input, output))
    }

    /// Returns the status of a worker that has ended with an error. A worker that ends closes its output a moment earlier.
    fn failed_status(&self) -> Option<ExitStatus> {
        let began = Instant::now();
        loop {
            match self.process.with(Child::try_wait) {
                Ok(None) if began.elapsed() < END => thread::sleep(END / 50),
                Ok(Some(status)) if !status.success() => return Some(status),
                _ => return None,
            }
        }
    }

    /// Returns the error to report for `error`. If the worker has died, the error contains the last line that it wrote.
    pub(crate) fn explain(&self, error: Error) -> Error {
        if self.process.is_stalled() {
            let seconds = self.limit.as_secs();
            return self.failure(
                &format!("no message for {seconds} s; a working evaluator sends its progress more often"),
                "nothing was judged; if the model only loads slowly, raise --evaluator-timeout",
            );
        }
        let Some(status) = self.failed_status() else {
            return error;
        };
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let last_line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        let advice = match status.code() {
            Some(_) => "nothing was judged",
            None => "nothing was judged; the worker may have run out of memory",
        };
        self.failure(&reason_of_end(status, last_line), advice)
    }

    fn failure(&self, said: &str, advice: &str) -> Error {
        ReferenceError {
            what: "the evaluator".to_owned(),
            said: said.to_owned(),
            advice: advice.to_owned(),
            log: self.log.clone(),
        }
        .into()
    }
}

impl Drop for EvaluatorProcess {
    fn drop(&mut self) {
        let has_failed = self.process.is_stalled()
            || matches!(self.process.with(Child::try_wait), Ok(Some(status)) if !status.success());
        _ = self.process.with(Child::kill);
        _ = self.process.with(Child::wait);
        if !has_failed {
            _ = fs::remove_file(&self.log);
        }
    }
}
