//! `xcheck probe`: checks a running server for determinism, and compares it with a model.

use std::fs::create_dir_all;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};

use crate::atomic_write::write_whole;
use crate::check::{Mode, Role, Tolerances};
use crate::checkpoint::Checkpoint;
use crate::cli::audited_states::AuditedModels;
use crate::cli::comparison::{ComparisonContext, ComparisonOptions, LoadedModels};
use crate::cli::named_dump::NamedDump;
use crate::cli::names::{command, plain_name};
use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{
    CauseOptions, ModelOptions, OutputOptions, ReportFormat, RequestedModelOptions, ThreadOptions,
};
use crate::cli::output::ReportOutput;
use crate::cli::probe_audit::{AuditedEndpoint, audit};
use crate::cli::requested_model::{RequestedModel, own_tokenizer};
use crate::cli::server_options::{ServerAnswers, ServerOptions};
use crate::cli::terminal::{self, say};
use crate::dump::{COARSEST, Dump, ModelInfo, Producer};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::probe::self_consistency::{RoundingScale, determinism, prefill_and_decode, sound};
use crate::probe::{
    Client, LogprobDifference, ModelTemplate, ProbeCheck, ProbeSubject, Recording, ServerIdentity, distance,
    floor, speak, template, tokenization,
};
use crate::report::{Comparison, Report, ServerCheck, ServerReport};
use crate::tokenizer::{Chat, Tokenizer};
use crate::verdict::{NOT_RECORDED, SiteResult, Verdict};
#[cfg(feature = "serve")]
use crate::{
    probe::CONVERSATION,
    tokenizer::{ChatTemplate, Conversation},
};

/// Arguments of `xcheck probe`.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    #[command(flatten)]
    asking: ServerOptions,
    /// Model that is served, as for `xcheck run`
    ///
    /// Without it, the server is only compared with itself.
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    /// Download model files missing from the Hugging Face cache
    #[arg(long, requires = "model")]
    download: bool,
    /// Tell by one-token requests whether the server serves this model
    ///
    /// A sequential test: a true state is rejected with a probability of at most 0.1 %. --requests limits the
    /// number of requests. The report folder gets audit.json.
    #[arg(
        long,
        requires = "model",
        conflicts_with_all = ["record", "decode", "numerics", "dtype", "kv_cache", "strict", "no_causes", "causes"],
        help_heading = "Audit"
    )]
    audit: bool,
    /// Another model that the server may serve, such as a LoRA step
    #[arg(long, value_name = "MODEL", requires = "audit", help_heading = "Audit")]
    against: Vec<String>,
    /// Seed of the random prompts [default: random]
    #[arg(long, value_name = "N", requires = "audit", help_heading = "Audit")]
    seed: Option<u64>,
    #[command(flatten)]
    causes: CauseOptions,
    /// File for the server's answers, as a dump
    ///
    /// With --model, the default is answers.safetensors in the folder of the report.
    #[arg(long, value_name = "DUMP", help_heading = "Output")]
    record: Option<PathBuf>,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    numerics: NumericsOptions,
    #[command(flatten)]
    model_options: ModelOptions,
    #[command(flatten)]
    pub(super) threads: ThreadOptions,
}

/// Dump settings that may describe a server's arithmetic.
type ServerSettings = Vec<(&'static str, Value)>;

/// Name of the dump in a report's folder.
const ANSWERS: &str = "answers.safetensors";

/// Sends the requests, judges the answers, and writes the report.
pub(crate) fn run(args: &ProbeArgs) -> Result<Verdict> {
    if let Some(path) = args.record.as_ref().filter(|path| path.symlink_metadata().is_ok()) {
        let path = path.display();
        return Err(Error::Usage(format!(
            "--record {path}: the file already exists; use another name or \
            remove it"
        )));
    }
    let client = args.asking.client()?;
    if args.audit {
        return args.audit(&client);
    }
    let about = client.base().split_once("://").map_or("", |(_, rest)| rest);
    let mut output = ReportOutput::open(&args.output, &format!("probe-{}", plain_name(about)))?;
    let report = output.or_refuse(|output| args.probe(&client, output))?;
    output.finish(&report)
}

/// Result of comparing a recording with the model, and the noise floor of the recording.
struct ModelComparison {
    comparison: Comparison,
    floor: LogprobDifference,
}

impl ProbeArgs {
    /// Finds the state in which the server serves the model, and writes `audit.json`.
    fn audit(&self, client: &Client) -> Result<Verdict> {
        let model =
            RequestedModelOptions::downloadable(self.model.as_deref().unwrap_or_default(), self.download);
        let models = AuditedModels::load(&model, &self.against, &self.model_options)?;
        let known = self.asking.identify(client)?;
        let server = speak(client, &known);
        let endpoint = AuditedEndpoint {
            client,
            known: &known,
            top: self.asking.top(&*server),
            server: &*server,
            seed: self.seed.unwrap_or_else(random_seed),
        };
        let report = audit(&models, &endpoint)?;
        let document = format!("{:#}\n", report.json());
        let about = client.base().split_once("://").map_or("", |(_, rest)| rest);
        if let Some(folder) = ReportOutput::place(&self.output, &format!("audit-{}", plain_name(about))) {
            create_dir_all(&folder).map_err(Error::io("create", &folder))?;
            let path = folder.join("audit.json");
            write_whole(&path, document.as_bytes()).map_err(Error::io("write", &path))?;
        }
        match self.output.format {
            ReportFormat::Json => terminal::document(document.trim_end()),
            _ => say!("{}", report.table().trim_end()),
        }
        Ok(report.verdict())
    }

    fn probe(&self, client: &Client, output: &ReportOutput) -> Result<Report> {
        let target = self
            .model
            .as_deref()
            .map(|model| RequestedModelOptions::downloadable(model, self.download).find())
            .transpose()?;
        let (own, no_tokenizer) = own_tokenizer(target.as_ref());
        let known = self.asking.identify(client)?;
        let asked = self.asking.ask(client, &known, own.as_deref())?;
        let ask = asked.ask();
        let mut checks = vec![
            tokenization(&*asked.server, own.as_deref(), &no_tokenizer)?,
            template(
                &*asked.server,
                own.as_deref(),
                &own_template(target.as_ref(), own.as_deref())?,
                &no_tokenizer,
            )?,
        ];
        checks.extend(sound(&asked.generated, &ask));
        let mut held = match &target {
            None => None,
            Some(target) => self.against_model(target, &known, &asked, output, &mut checks)?,
        };
        let scale = RoundingScale { floor: held.as_ref().map(|held| held.floor), step: asked.step() };
        let unread =
            |why| ProbeCheck::unanswered(ProbeSubject::Answer, "log-probabilities of the prompt", why);
        checks.extend(asked.read.as_ref().err().map(unread));
        checks.push(prefill_and_decode(&*asked.server, &ask, &asked.generated, scale, client.left())?);
        let (own, apart) = determinism(&*asked.server, &ask, &asked.generated, scale)?;
        checks.extend(own);
        if let Some(held) = &mut held {
            held.comparison.outcome.doubt_within(apart);
        }
        let results: Vec<_> = held.map(|held| held.comparison).into_iter().collect();
        let checkpoints = vec![Checkpoint::Probs, Checkpoint::Generation];
        let served = served(client, &known, scale, &checks);
        Ok(Report { command: command(), results, checkpoints, served: Some(served) })
    }

    /// Judges the server's answers like any other dump.
    fn against_model(
        &self,
        target: &RequestedModel,
        known: &ServerIdentity,
        asked: &ServerAnswers,
        output: &ReportOutput,
        checks: &mut Vec<ProbeCheck>,
    ) -> Result<Option<ModelComparison>> {
        const NAME: &str = "compared with the model";
        let recording = asked.recording();
        let path = self.record.clone().or_else(|| output.folder().map(|folder| folder.join(ANSWERS)));
        let named = path.clone().unwrap_or_else(|| ANSWERS.into());
        let why_not = match (recording.is_empty() || recording.prompt.is_empty(), asked.step()) {
            (true, _) if asked.server.reads_conversations() => Some(
                "the server only answers conversations and does not show the text that its template makes of them"
                    .to_owned(),
            ),
            (true, _) => Some(
                "the server returns neither token ids nor log-probabilities, so nothing can be compared"
                    .to_owned(),
            ),
            (false, step) if step > COARSEST => Some(format!(
                "the log-probabilities are multiples of {step}, too coarse to distinguish models"
            )),
            (false, _) => None,
        };
        if let Some(why) = why_not {
            checks.push(ProbeCheck::new(ProbeSubject::Model, NAME, (Verdict::Inconclusive, why)));
            return Ok(None);
        }
        let loaded = self.model_options.load(&target.variants[0])?;
        let info = ModelInfo {
            name: known.model.clone(),
            architecture: loaded.model.architecture().to_owned(),
            sha256: None,
        };
        let (mut dump, _) = recording.dump(known, info.clone(), known.dtype.as_deref(), &named)?;
        let options = self.judging();
        let alone = ComparisonOptions { causes: CauseOptions::NONE, ..self.judging() };
        let mut trials = trials(known, loaded.format, self.numerics.is_named());
        self.nearest_first(&mut trials, &*loaded.model, &dump.manifest.producer, &recording);
        let told = dump.manifest.producer.settings.clone();
        let mut by = |trial: &ServerSettings, causes: bool| {
            dump.manifest.producer.settings = with(&told, trial);
            self.judged(target, &dump, &named, if causes { &options } else { &alone }, output)
        };
        let (mut comparison, trial) = best_trial(&trials, self.causes.are_sought(), &mut by)?;
        dump.manifest.producer.settings = with(&told, trial);
        // Values that a server never returns need no note per dump.
        comparison.outcome.notes.retain(|note| !note.starts_with(NOT_RECORDED));
        if trials.len() > 1 {
            comparison.outcome.notes.push(format!(
                "the server does not state its arithmetic; the best match is used: {}; set another with \
                    --numerics and --dtype",
                shown(trial)
            ));
        }
        let floor = self.floor(target, &dump, &recording.tokens(), asked.top)?;
        match &path {
            Some(path) => keep(path, &recording, known, info, &dump)?,
            None => comparison
                .outcome
                .notes
                .push(format!("the answers were not saved; use --record {ANSWERS} to save them")),
        }
        Ok(Some(ModelComparison { comparison, floor }))
    }

    /// Sorts the arithmetics, those nearest to the answers first. An arithmetic that is ten times nearer than the usual
    /// one has the server's exact bits.
    fn nearest_first(
        &self,
        trials: &mut [ServerSettings],
        model: &dyn Model,
        producer: &Producer,
        recording: &Recording,
    ) {
        if trials.len() < 2 {
            return;
        }
        let (tokens, told) = (recording.tokens(), recording.told());
        let of = |trial: &ServerSettings| {
            let producer = Producer { settings: with(&producer.settings, trial), ..producer.clone() };
            let (choices, _) = self.numerics.of_dump(model, &producer).ok()?;
            distance(model, &**choices.first()?, &tokens, &told).ok()
        };
        let distances: Vec<f64> = trials.iter().map(|trial| of(trial).unwrap_or(f64::INFINITY)).collect();
        let nearest = (0..trials.len()).min_by(|a, b| distances[*a].total_cmp(&distances[*b]));
        if let Some(nearest) = nearest.filter(|&nearest| 10.0 * distances[nearest] < distances[0]) {
            trials[..=nearest].rotate_right(1);
        }
    }

    fn judged(
        &self,
        target: &RequestedModel,
        dump: &Dump,
        path: &Path,
        options: &ComparisonOptions,
        output: &ReportOutput,
    ) -> Result<Comparison> {
        let name = dump.manifest.producer.name.clone();
        let named = NamedDump::new(name, path.display().to_string(), dump.clone());
        let (selection, tolerances) = (&options.selection(), &Tolerances::shipped());
        let (mode, command) = (Mode::Both, ("check", Some("--candidate")));
        let judging = ComparisonContext { target, selection, tolerances, options, mode, command, output };
        judging.of(&named, Role::Candidate, &mut LoadedModels::new(&self.model_options))
    }

    /// Returns the noise floor of the server's values, in the numerics that explain them best.
    fn floor(
        &self,
        target: &RequestedModel,
        dump: &Dump,
        tokens: &[u32],
        top: usize,
    ) -> Result<LogprobDifference> {
        let loaded = self.model_options.load(&target.variants[0])?;
        let (choices, is_stated) = self.numerics.of_dump(&*loaded.model, &dump.manifest.producer)?;
        let mut largest = LogprobDifference::default();
        for numerics in &choices {
            largest = largest.or(floor(&*loaded.model, &**numerics, is_stated, tokens, top)?);
        }
        Ok(largest)
    }

    fn judging(&self) -> ComparisonOptions {
        ComparisonOptions {
            target: RequestedModelOptions::of(self.model.as_deref().unwrap_or_default()),
            numerics: self.numerics.clone(),
            threads: self.threads.clone(),
            model: self.model_options.clone(),
            causes: self.causes.clone(),
            output: self.output.clone(),
            ..ComparisonOptions::default()
        }
    }
}

/// Returns a seed that a server cannot guess.
fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 16
}

/// Returns the settings that explain the answers best: by verdict, then by number of failures, then by largest
/// bound ratio. Causes are searched only if these are equal.
fn best_trial<'t>(
    trials: &'t [ServerSettings],
    seeks_causes: bool,
    by: &mut impl FnMut(&ServerSettings, bool) -> Result<Comparison>,
) -> Result<(Comparison, &'t ServerSettings)> {
    if let [only] = trials {
        return Ok((by(only, true)?, only));
    }
    let (mut judged, mut refused) = (Vec::new(), None);
    for trial in trials {
        match by(trial, false) {
            Ok(comparison) if comparison.outcome.verdict == Verdict::Pass => return Ok((comparison, trial)),
            Ok(comparison) => judged.push((comparison, trial)),
            Err(error) => refused = Some(error),
        }
    }
    let said =
        |(Comparison { outcome, .. }, _): &(Comparison, _)| (outcome.verdict, outcome.count(Verdict::Fail));
    let off = |(comparison, _): &(Comparison, _)| {
        comparison.outcome.rows.iter().filter_map(SiteResult::bound_ratio).fold(0.0, f64::max)
    };
    let Some(least) = judged.iter().map(said).min() else {
        return Err(refused.expect("no trial was judged, so one was refused"));
    };
    judged.retain(|one| said(one) == least);
    judged.sort_by(|one, other| off(one).total_cmp(&off(other)));
    if !seeks_causes {
        return Ok(judged.swap_remove(0));
    }
    let mut first = None;
    for (_, trial) in judged {
        let comparison = by(trial, true)?;
        if comparison.outcome.cause().is_some() {
            return Ok((comparison, trial));
        }
        first.get_or_insert((comparison, trial));
    }
    Ok(first.expect("at least one trial has the smallest value"))
}

/// Reads the chat template in the model's own files. Needs the feature `serve`, which includes Jinja.
fn own_template(target: Option<&RequestedModel>, own: Option<&dyn Tokenizer>) -> Result<ModelTemplate> {
    let Some(target) = target else { return Ok(ModelTemplate::default()) };
    let chat = target.variants[0].files.chat(own)?;
    Ok(ModelTemplate {
        words: words(&chat),
        beginning: chat.tokens.get("bos_token").cloned().unwrap_or_default(),
        has_a_date: chat.template.is_some_and(|source| source.contains("strftime_now")),
    })
}

#[cfg(feature = "serve")]
fn words(chat: &Chat) -> Option<String> {
    let template = ChatTemplate::new(chat.template.clone()?, &chat.tokens).ok()?;
    let message = |(role, content): &(&str, &str)| json!({"role": role, "content": content});
    let conversation = Conversation {
        messages: CONVERSATION.iter().map(message).collect(),
        adds_prompt: true,
        continues: false,
        told: Default::default(),
        adds_special: false,
    };
    template.render(&conversation).ok()
}

#[cfg(not(feature = "serve"))]
fn words(_: &Chat) -> Option<String> {
    None
}

/// Returns the settings to try for a server: stated or given ones, or otherwise those that are usual for such
/// files, in order. Rounding to 8 bits in an unknown way comes last.
fn trials(known: &ServerIdentity, format: &str, is_named: bool) -> Vec<ServerSettings> {
    match (known.dtype.is_some() || is_named, format) {
        (true, _) => vec![Vec::new()],
        (_, "gguf") => {
            let known =
                [("llama.cpp-flash", "f16"), ("llama.cpp", "f16"), ("llama.cpp", "f32"), ("f32", "f32")];
            let known = known
                .map(|(numerics, cache)| vec![("numerics", json!(numerics)), ("kv_cache", json!(cache))]);
            known.into_iter().chain([Vec::new()]).collect()
        }
        _ => ["f32", "bf16", "f16"].map(|dtype| vec![("dtype", json!(dtype))]).into(),
    }
}

fn with(told: &Map<String, Value>, trial: &[(&str, Value)]) -> Map<String, Value> {
    let tried = trial.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
    told.clone().into_iter().chain(tried).collect()
}

/// Describes the settings of a trial.
fn shown(trial: &[(&str, Value)]) -> String {
    let word = |(key, value): &(&str, Value)| {
        let value = value.as_str().unwrap_or_default();
        if *key == "kv_cache" { format!("a {value} cache") } else { value.to_owned() }
    };
    match trial {
        [] => "any rounding to 8 bits".to_owned(),
        _ => trial.iter().map(word).collect::<Vec<_>>().join(" with "),
    }
}

/// Writes the answers as a dump, with the settings that explain them.
fn keep(
    path: &Path,
    recording: &Recording,
    known: &ServerIdentity,
    info: ModelInfo,
    dump: &Dump,
) -> Result<()> {
    let (_, bytes) = recording.dump_with(known, info, dump.manifest.producer.settings.clone(), path)?;
    write_whole(path, &bytes).map_err(Error::io("write", path))
}

fn served(
    client: &Client,
    known: &ServerIdentity,
    scale: RoundingScale,
    checks: &[ProbeCheck],
) -> ServerReport {
    let check = |check: &ProbeCheck| ServerCheck {
        about: check.subject.name().to_owned(),
        check: check.name.clone(),
        verdict: check.verdict,
        found: check.found.clone(),
    };
    ServerReport {
        url: client.base().to_owned(),
        kind: known.kind.name().to_owned(),
        version: known.version.clone(),
        model: known.model.clone(),
        dtype: known.dtype.clone(),
        allowed: client.made() + client.left(),
        requests: client.made(),
        rounding: scale.floor.map(|floor| floor.nats),
        checks: checks.iter().map(check).collect(),
    }
}
