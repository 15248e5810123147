//! Making references: options, progress and checks.

use std::io::{IsTerminal, stderr, stdin};
use std::path::{Path, PathBuf};

use clap::Args;
use sha2::{Digest, Sha256};

use crate::cli::progress::ProgramProgress;
use crate::cli::reference_request::{ReferencePlan, ReferenceRequest};
use crate::cli::requested_model::RequestedModel;
use crate::cli::terminal::{self, tell};
use crate::disk_cache::DiskCache;
use crate::dump::Dump;
use crate::error::{Error, Result};
use crate::reference::{
    DumpRequest, Installer, PendingOutput, PythonEnvironment, ReferenceEngine, ReferenceFolder,
};

/// Options that choose how a reference is made.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ReferenceOptions {
    /// Reference engine: transformers, llama.cpp, mlx or tinygrad
    ///
    /// The default is llama.cpp for GGUF files, else transformers.
    #[arg(long, value_name = "ENGINE", help_heading = "Reference engine")]
    pub(crate) with: Option<ReferenceEngine>,
    #[command(flatten)]
    environment: EnvironmentOptions,
}

/// The Python environment in which an engine runs.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct EnvironmentOptions {
    /// Python of an environment that has the engine; nothing is installed
    #[arg(long, value_name = "PATH", help_heading = "Reference engine")]
    python: Option<PathBuf>,
    /// Install the engine's packages without asking
    ///
    /// They are installed once, into the cache.
    #[arg(long, short, help_heading = "Reference engine")]
    yes: bool,
}

/// The engine's Python environment: an existing one, or the installer that makes it.
enum EnvironmentSource {
    Here(PythonEnvironment),
    ToMake(Installer),
}

impl ReferenceOptions {
    /// Returns true if an option was given.
    pub(crate) fn are_given(&self) -> bool {
        self.with.is_some() || self.environment.python.is_some() || self.environment.yes
    }

    /// Makes the requested dump, and the Python environment if needed. Returns the path.
    ///
    /// # Errors
    /// If the request is invalid or the engine fails; then no incomplete dump remains.
    pub(crate) fn make(
        &self,
        target: &RequestedModel,
        wish: &ReferenceRequest,
        is_verbose: bool,
    ) -> Result<PathBuf> {
        let workplace = ReferenceFolder::in_kept(&DiskCache::from_env()?)?;
        let subject = ReferencePlan::of(target, wish)?;
        if subject.out.exists() {
            return Err(exists(&subject.out));
        }
        let source = self.environment.source(subject.engine, &workplace)?;
        let mut steps = ProgramProgress::new(is_verbose);
        let lock = workplace.lock(&key(&subject.out)?);
        let making = PendingOutput::begin(&subject.out, &lock, || wait_for("dump")).map_err(no_place)?;
        if subject.out.exists() {
            return Ok(subject.out); // another process has made it meanwhile
        }
        let environment = source.ready(subject.engine, &workplace, &mut steps)?;
        steps.begin(&format!("running {} on {}", subject.engine.name(), subject.variant.name));
        let part = subject.out.file_name().unwrap_or_default().to_string_lossy().into_owned();
        subject.order(target, &subject.files(target, &workplace)?).carry_out(
            &environment,
            &workplace,
            &making.part(&part),
            &mut steps,
        )?;
        check(&making.part(&part), &subject)?;
        if subject.out.exists() {
            return Err(exists(&subject.out)); // made by a process without a lock
        }
        making.finish(&part)
    }
}

impl EnvironmentSource {
    /// Returns the environment. Creates it if it does not exist.
    fn ready(
        self,
        engine: ReferenceEngine,
        workplace: &ReferenceFolder,
        steps: &mut ProgramProgress,
    ) -> Result<PythonEnvironment> {
        match self {
            EnvironmentSource::Here(environment) => Ok(environment),
            EnvironmentSource::ToMake(installer) => {
                steps.begin(&format!("creating the environment of {}", engine.name()));
                installer.make(engine, workplace, || wait_for("environment"), steps)
            }
        }
    }
}

impl EnvironmentOptions {
    /// Returns the environment of an engine. If it does not exist, asks the user before it is created.
    ///
    /// # Errors
    /// If there is none and the user does not agree, or it cannot be made.
    pub(crate) fn find_or_make(
        &self,
        engine: ReferenceEngine,
        workplace: &ReferenceFolder,
        steps: &mut ProgramProgress,
    ) -> Result<PythonEnvironment> {
        self.source(engine, workplace)?.ready(engine, workplace, steps)
    }

    fn source(&self, engine: ReferenceEngine, workplace: &ReferenceFolder) -> Result<EnvironmentSource> {
        if let Some(python) = &self.python {
            return PythonEnvironment::of_the_user(engine, python).map(EnvironmentSource::Here);
        }
        if let Some(made) = PythonEnvironment::made(engine, workplace) {
            return Ok(EnvironmentSource::Here(made));
        }
        let installer = Installer::find(engine)?;
        self.agree(engine, &installer, workplace).map(|()| EnvironmentSource::ToMake(installer))
    }

    /// Asks the user before anything is installed.
    fn agree(
        &self,
        engine: ReferenceEngine,
        installer: &Installer,
        workplace: &ReferenceFolder,
    ) -> Result<()> {
        let what = format!(
            "{} needs an environment, which {} creates once: up to {} packages from PyPI ({}) in {}, about {}",
            engine.name(),
            installer.name(),
            engine.locked_packages(),
            engine.packages().join(", "),
            workplace.environment(engine).display(),
            engine.size()
        );
        if self.yes {
            tell!("{what}");
            return Ok(());
        }
        if !(stdin().is_terminal() && stderr().is_terminal()) {
            return Err(Error::Usage(format!(
                "{what}; cannot ask for confirmation without a terminal: pass --yes, or name the Python of \
                 an existing environment with --python"
            )));
        }
        terminal::err(&format!("{what}\nContinue? [y/N] "));
        let mut answer = String::new();
        _ = stdin().read_line(&mut answer);
        match answer.trim().to_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Error::Usage("cancelled: nothing was installed, and no reference was made".to_owned())),
        }
    }
}

impl ReferencePlan<'_> {
    fn order<'s>(&'s self, target: &'s RequestedModel, model: &'s Path) -> DumpRequest<'s> {
        let shipped = target.shipped_model();
        DumpRequest {
            engine: self.engine,
            model,
            name: shipped.map_or(&target.name, |model| model.name),
            input: &self.input,
            decode: self.decode,
            dtype: self.dtype,
            kv_cache: self.kv_cache,
        }
    }
}

fn no_place(error: Error) -> Error {
    Error::Usage(format!(
        "{error}; use xcheck reference --out to write to another place, then pass that dump to xcheck run \
            --reference"
    ))
}

fn wait_for(what: &str) {
    tell!("waiting for another xcheck that is making this {what}");
}

fn exists(out: &Path) -> Error {
    Error::Usage(format!(
        "{} already exists; remove it, or use xcheck reference --out to write to another place",
        out.display()
    ))
}

/// Returns the name of a dump's lock file, derived from the dump's path.
fn key(out: &Path) -> Result<String> {
    let place = std::path::absolute(out).map_err(Error::io("find", out))?;
    let hash = Sha256::digest(place.as_os_str().as_encoded_bytes());
    Ok(format!("dump-{}", &hex::encode(hash)[..16]))
}

/// Rejects a result that is not a dump, or that was made from other weights.
fn check(written: &Path, subject: &ReferencePlan) -> Result<()> {
    let dumps = Dump::open_all(written)?;
    let found = subject.variant.sha256()?;
    for dump in &dumps {
        if let (Some(stated), Some(found)) = (&dump.manifest.model.sha256, &found)
            && stated != found
        {
            return Err(Error::Usage(format!(
                "{} read other weights than {}: SHA-256 {stated}, expected {found}; check whether the folder \
                    has several models",
                subject.engine.name(),
                subject.variant.name
            )));
        }
    }
    Ok(())
}
