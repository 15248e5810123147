//! Progress of a long run, as a line on standard error if standard error is a terminal. A line is cleared when it
//! is dropped.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::check::SearchStep;
use crate::checkpoint::{Site, TapScope};
use crate::cli::remaining_time::{part_done, time_left};
use crate::cli::terminal::tell;
use crate::hub::DownloadObserver;
use crate::reference;
use crate::tap::Tap;
use crate::tensor::Tensor;

/// Delay before progress is shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// Lines that are shown at the same time: a run, and a search for causes within it.
static LINES: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template of the progress bar is valid")
}

/// A tap that shows the progress of a run and does not change values.
pub(crate) struct RunProgress {
    bar: ProgressBar,
    layers: usize,
    /// Number of tokens per pass, if known.
    passes: Vec<usize>,
    began: Instant,
    /// Current pass and layer. A comparison consists of several runs.
    at: Option<(usize, usize)>,
    walk: Instant,
}

impl RunProgress {
    /// Makes the progress line for a run of a model with `layers` layers. `what` is its label.
    pub(crate) fn new(what: &str, layers: usize) -> Self {
        let bar = ProgressBar::new_spinner().with_style(style("{spinner} {prefix}  {msg}  {elapsed}"));
        let bar = LINES.add(bar);
        // A label may contain a name from a file, so control characters are removed.
        bar.set_prefix(what.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>());
        let now = Instant::now();
        Self { bar, layers, passes: Vec::new(), began: now, at: None, walk: now }
    }

    /// Sets the tokens of each pass, to show the remaining time.
    pub(crate) fn along(mut self, passes: impl IntoIterator<Item = usize>) -> Self {
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

/// Progress of a search for causes. The line is gone when the search ends.
pub(crate) struct SearchProgress {
    /// Line that shows the running search, once it has taken some time.
    bar: Mutex<Option<ProgressBar>>,
}

impl SearchProgress {
    /// Creates the line, hidden until the search has taken some time.
    pub(crate) fn new() -> Self {
        Self { bar: Mutex::default() }
    }

    /// Shows a step of the search; `None` if the search has ended.
    pub(crate) fn show(&self, step: Option<SearchStep>) {
        let mut bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        match step {
            None => bar.take().into_iter().for_each(|bar| bar.finish_and_clear()),
            Some(step) if step.spent < PATIENCE => {}
            Some(step) => {
                let template = "{spinner} looking for the cause: {msg}";
                let line = || LINES.add(ProgressBar::new_spinner().with_style(style(template)));
                let bar = bar.get_or_insert_with(line);
                bar.set_message(search_message(step));
                bar.tick();
            }
        }
    }
}

/// Returns the text of the line: the time, and the tap or the layer whose cause is searched.
fn search_message(step: SearchStep) -> String {
    let place = step.site.map_or(String::new(), |site| match site.layer {
        Some(layer) => format!(", {} in layer {} of {}", site.point, layer + 1, step.layers),
        None => format!(", {}", site.point),
    });
    format!("{} s{place}", step.spent.as_secs())
}

/// Progress of work in equal steps, such as dumps of a self-test.
pub(crate) struct StepProgress {
    bar: ProgressBar,
    began: Instant,
}

impl StepProgress {
    /// Makes the progress line before the first of `count` steps. `what` is the label of a step.
    pub(crate) fn new(what: &str, count: usize) -> Self {
        let style = style("{prefix} {pos} of {len}  {elapsed}, {eta} left");
        let bar = ProgressBar::hidden().with_style(style).with_prefix(what.to_owned());
        bar.set_length(count as u64);
        Self { bar, began: Instant::now() }
    }

    /// Sets the number of finished steps.
    pub(crate) fn reached(&mut self, done: usize) {
        if self.bar.is_hidden() && self.began.elapsed() > PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(done as u64);
    }
}

/// A bar for each file of a download.
pub(crate) struct DownloadProgress {
    bar: ProgressBar,
}

impl DownloadProgress {
    /// Makes the bars, hidden until the first file.
    pub(crate) fn new() -> Self {
        let style = style("{prefix}  {bar:24} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left");
        Self { bar: ProgressBar::hidden().with_style(style) }
    }
}

impl DownloadObserver for DownloadProgress {
    fn file(&mut self, name: &str, bytes: u64, start: u64) {
        let bar = ProgressBar::new(bytes).with_style(self.bar.style()).with_prefix(name.to_owned());
        self.bar = bar;
        self.bar.set_position(start);
        self.bar.reset_eta(); // bytes from an earlier download do not count for the speed
    }

    fn reached(&mut self, bytes: u64) {
        self.bar.set_position(bytes);
    }
}

/// Progress of another program: one line, or all its output.
pub(crate) struct ProgramProgress {
    bar: ProgressBar,
    is_verbose: bool,
}

impl ProgramProgress {
    /// Makes the progress line, hidden until the first step.
    pub(crate) fn new(is_verbose: bool) -> Self {
        let bar = ProgressBar::hidden().with_style(style("{spinner} {prefix}  {elapsed}  {wide_msg}"));
        Self { bar, is_verbose }
    }

    /// Starts the next step. Without a terminal, only this line is printed.
    pub(crate) fn begin(&mut self, what: &str) {
        let bar = ProgressBar::new_spinner().with_style(self.bar.style()).with_prefix(what.to_owned());
        if self.is_verbose || bar.is_hidden() {
            tell!("{what}");
            return;
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        self.bar = bar;
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
