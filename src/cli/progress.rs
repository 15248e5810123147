//! Progress of a long run: a line on a terminal's standard error, nothing elsewhere.

use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::checkpoint::{Site, TapScope};
use crate::cli::remaining_time::{part_done, time_left};
use crate::cli::terminal::tell;
use crate::hub::DownloadObserver;
use crate::reference;
use crate::tap::Tap;
use crate::tensor::Tensor;

/// Delay before progress is shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// A tap that shows where the run is and changes nothing.
pub struct RunProgress {
    bar: ProgressBar,
    layers: usize,
    /// Tokens of each pass, where they are known.
    passes: Vec<usize>,
    began: Instant,
    /// Current pass and layer of a run, and its start; a comparison has several runs.
    at: Option<(usize, usize)>,
    walk: Instant,
}

impl RunProgress {
    /// For a run of a model with `layers` layers; `what` names the run.
    pub fn new(what: &str, layers: usize) -> Self {
        let bar = ProgressBar::new_spinner().with_style(
            ProgressStyle::with_template("{spinner} {prefix}  {msg}  {elapsed}")
                .expect("the template is sound"),
        );
        // A name may come from a file: no escape sequences.
        bar.set_prefix(what.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>());
        let now = Instant::now();
        Self { bar, layers, passes: Vec::new(), began: now, at: None, walk: now }
    }

    /// Sets the tokens of each pass, to show the remaining time.
    pub fn along(mut self, passes: impl IntoIterator<Item = usize>) -> Self {
        self.passes = passes.into_iter().collect();
        self
    }

    fn show(&mut self, pass: usize, layer: usize) {
        if self.at.is_none_or(|before| (pass, layer) < before) {
            self.walk = Instant::now();
        }
        self.at = Some((pass, layer));
        if self.began.elapsed() < PATIENCE {
            return;
        }
        let left = part_done(&self.passes, pass, layer, self.layers)
            .and_then(|done| time_left(self.walk.elapsed(), done))
            .map(|left| format!(", {} left in this run", HumanDuration(left)));
        let layers = self.layers;
        self.bar.set_message(format!(
            "pass {pass}, layer {} of {layers}{}",
            layer + 1,
            left.unwrap_or_default()
        ));
        self.bar.tick();
    }
}

impl Tap for RunProgress {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if let (Some(pass), Some(layer), TapScope::Layer) = (site.pass, site.layer, site.point.scope())
            && self.at != Some((pass, layer))
        {
            self.show(pass, layer);
        }
        value
    }
}

impl Drop for RunProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Progress of a search for causes.
pub struct SearchProgress {
    bar: ProgressBar,
}

impl SearchProgress {
    /// Creates the line, hidden until the search has taken some time.
    pub fn new() -> Self {
        let style = ProgressStyle::with_template("{spinner} searching for causes  {msg}");
        Self { bar: ProgressBar::hidden().with_style(style.expect("the template is sound")) }
    }

    /// Shows the time spent.
    pub fn reached(&self, spent: Duration) {
        if self.bar.is_hidden() && spent > PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_message(format!("{} s", spent.as_secs()));
    }
}

impl Drop for SearchProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Progress in equal steps.
pub struct StepProgress {
    bar: ProgressBar,
    began: Instant,
}

impl StepProgress {
    /// Before the first of so many; `what` names a step.
    pub fn new(what: &str, count: usize) -> Self {
        let style = ProgressStyle::with_template("{prefix} {pos} of {len}  {elapsed}, {eta} left");
        let bar = ProgressBar::hidden().with_style(style.expect("the template is sound"));
        bar.set_length(count as u64);
        bar.set_prefix(what.to_owned());
        Self { bar, began: Instant::now() }
    }

    /// Sets the number of finished steps.
    pub fn reached(&mut self, done: usize) {
        if self.bar.is_hidden() && self.began.elapsed() > PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(done as u64);
    }
}

impl Drop for StepProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A bar for each file of a download.
pub struct DownloadProgress {
    bar: ProgressBar,
}

impl DownloadProgress {
    /// Shows nothing before the first file.
    pub fn new() -> Self {
        let style = "{prefix}  {bar:24} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left";
        let style = ProgressStyle::with_template(style).expect("the template is sound");
        Self { bar: ProgressBar::hidden().with_style(style) }
    }
}

impl DownloadObserver for DownloadProgress {
    fn file(&mut self, name: &str, bytes: u64, start: u64) {
        let bar = ProgressBar::new(bytes).with_style(self.bar.style()).with_prefix(name.to_owned());
        std::mem::replace(&mut self.bar, bar).finish_and_clear();
        self.bar.set_position(start);
        self.bar.reset_eta(); // what was here before says nothing about the speed
    }

    fn reached(&mut self, bytes: u64) {
        self.bar.set_position(bytes);
    }
}

impl Drop for DownloadProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Progress of another program: one line, or all its output.
pub struct ProgramProgress {
    bar: ProgressBar,
    is_verbose: bool,
}

impl ProgramProgress {
    /// Shows nothing before the first step.
    pub fn new(is_verbose: bool) -> Self {
        let style = ProgressStyle::with_template("{spinner} {prefix}  {elapsed}  {wide_msg}");
        let bar = ProgressBar::hidden().with_style(style.expect("the template is sound"));
        Self { bar, is_verbose }
    }

    /// The next step begins. Where there is no terminal, this line is all that is shown of it.
    pub fn begin(&mut self, what: &str) {
        let bar = ProgressBar::new_spinner().with_style(self.bar.style()).with_prefix(what.to_owned());
        if self.is_verbose || bar.is_hidden() {
            tell!("{what}");
            return;
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        std::mem::replace(&mut self.bar, bar).finish_and_clear();
    }
}

impl reference::ProcessObserver for ProgramProgress {
    fn line(&mut self, line: &str) {
        match self.is_verbose {
            true => tell!("  {line}"),
            false => self.bar.set_message(line.to_owned()),
        }
    }
}

impl Drop for ProgramProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
