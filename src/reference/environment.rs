//! Python environments for the engines' scripts: one made by xcheck, or one of the user.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::engine::ReferenceEngine;
use super::pending_output::PendingOutput;
use super::process::{ProcessObserver, ProcessTask, begin_log};
use super::reference_folder::{LOCKED, ReferenceFolder, on_the_path};
use crate::error::{Error, Result};

/// A Python environment that can run an engine's script.
#[derive(Clone, Debug)]
pub(crate) struct PythonEnvironment {
    engine: ReferenceEngine,
    python: PathBuf,
    /// True if xcheck made the environment; then no other folder provides modules.
    is_own: bool,
}

/// Subfolder of an environment with its programs.
const PROGRAMS: &str = if cfg!(windows) { "Scripts" } else { "bin" };
/// Name of the environment's folder inside its temporary folder.
const PART: &str = "environment";
/// Name of the program that `build_dump_llama_cpp.sh` makes.
const LLAMA_CPP: &str = "dump_llama_cpp";
/// Python code that prints which of the given modules are missing, and fails if Python is too old. It imports
/// nothing before the check of the version, since an old Python ignores `PYTHONSAFEPATH`.
const LOOK: &str = "import sys\n\
    if sys.version_info < (3, 11): sys.exit('error: Python is %d.%d, expected 3.11 or newer' % sys.version_info[:2])\n\
    import importlib.util as u\n\
    print(*[m for m in sys.argv[1:] if u.find_spec(m) is None])";
/// Variable that stops Python from importing modules from the current directory, which `-c` and `-m` would search
/// first.
const SAFE_PATH: &str = "PYTHONSAFEPATH";
/// Environment variables that add folders to Python's search for modules. They are unset in environments that xcheck made.
const ELSEWHERE: [&str; 2] = ["PYTHONPATH", "PYTHONHOME"];

impl PythonEnvironment {
    /// Uses the user's Python; nothing is installed into it.
    ///
    /// # Errors
    /// If the program is not Python, is too old, or lacks a module.
    pub(crate) fn of_the_user(engine: ReferenceEngine, python: &Path) -> Result<Self> {
        // A name without a folder is looked up on the PATH. The folder is needed, since llama.cpp's
        // program is next to it.
        let found = match python.components().count() {
            1 => python.to_str().and_then(on_the_path),
            _ => std::path::absolute(python).ok().filter(|path| path.is_file()),
        };
        let Some(found) = found else {
            return Err(Error::Usage(format!(
                "--python {}: no such program; give the path of a Python that has these packages: {}",
                python.display(),
                engine.packages().join(" ")
            )));
        };
        let environment = Self { engine, python: found, is_own: false };
        environment
            .check()
            .map_err(|problem| Error::Usage(format!("--python {}: {problem}", python.display())))?;
        Ok(environment)
    }

    /// Returns the environment made by xcheck, if it exists.
    pub(crate) fn made(engine: ReferenceEngine, workplace: &ReferenceFolder) -> Option<Self> {
        let environment = Self::at(engine, &workplace.environment(engine));
        environment.check().is_ok().then_some(environment)
    }

    fn at(engine: ReferenceEngine, folder: &Path) -> Self {
        Self {
            engine,
            python: folder.join(PROGRAMS).join("python").with_extension(std::env::consts::EXE_EXTENSION),
            is_own: true,
        }
    }

    /// Returns the path of llama.cpp's program in the environment.
    fn program(&self) -> PathBuf {
        self.python.with_file_name(LLAMA_CPP)
    }

    /// Returns the command that runs the script of that name, or the compiled program.
    pub(super) fn command(&self, scripts: &Path) -> Command {
        if self.engine == ReferenceEngine::LlamaCpp {
            return Command::new(self.program());
        }
        let mut command = self.python();
        command.arg(scripts.join(self.engine.recipe().scripts[0].0));
        command.env("DEV", "CPU"); // variable of tinygrad
        command
    }

    /// Returns the command that runs a module of a package in `folder`.
    pub(super) fn module(&self, name: &str, folder: &Path) -> Command {
        let mut command = self.python();
        // After the user's own folders, so that their packages are found too.
        let others = (!self.is_own).then(|| std::env::var_os(ELSEWHERE[0])).flatten();
        let others = others.iter().flat_map(std::env::split_paths);
        let paths = std::env::join_paths([folder.to_owned()].into_iter().chain(others));
        command.args(["-m", name]).env(SAFE_PATH, "1").env("PYTHONUNBUFFERED", "1");
        command.env(ELSEWHERE[0], paths.unwrap_or_else(|_| folder.as_os_str().to_owned()));
        command
    }

    /// Returns the command for Python with the environment's modules.
    fn python(&self) -> Command {
        if self.is_own { alone(&self.python) } else { Command::new(&self.python) }
    }

    /// Checks that everything the script needs is installed; the error says what is missing and how to get it.
    fn check(&self) -> Result<(), String> {
        if self.engine == ReferenceEngine::LlamaCpp {
            let program = self.program();
            return match Command::new(&program).arg("--help").output() {
                Ok(looked) if looked.status.success() => Ok(()),
                _ => Err(format!(
                    "{} is missing or does not start; name the Python of an environment that \
                     reference-scripts/dump/build_dump_llama_cpp.sh has made",
                    program.display()
                )),
            };
        }
        let modules = self.engine.recipe().modules;
        let looked = look(self.python(), modules.iter().map(|(name, _)| *name));
        let looked = looked.map_err(|error| format!("it cannot be started: {error}"))?;
        if !looked.status.success() {
            let said = String::from_utf8_lossy(&looked.stderr);
            return Err(said.trim().lines().next_back().unwrap_or("it fails without a message").to_owned());
        }
        let said = String::from_utf8_lossy(&looked.stdout);
        let missing: Vec<&str> = said.split_whitespace().collect();
        if missing.is_empty() { Ok(()) } else { Err(self.lacks(&missing)) }
    }

    fn lacks(&self, missing: &[&str]) -> String {
        let modules = self.engine.recipe().modules.iter();
        let packages = modules.filter(|(module, _)| missing.contains(module)).map(|(_, package)| package);
        let pins = self.engine.packages();
        let pinned = |package: &str| {
            let is_it = |pin: &&str| pin.split(['=', '[']).next() == Some(package);
            pins.iter().copied().find(is_it).unwrap_or(package).to_owned()
        };
        format!(
            "no module {}; install what is missing with: {} -m pip install {}",
            missing.join(", "),
            self.python.display(),
            packages.map(|package| pinned(package)).collect::<Vec<_>>().join(" ")
        )
    }
}

/// Program that makes an environment.
#[derive(Clone, Debug)]
pub(crate) enum Installer {
    /// uv, if it is on the PATH.
    Uv(PathBuf),
    /// Python with its venv and pip.
    Pip(PathBuf),
}

impl Installer {
    /// Finds uv or pip, and checks the other programs that the engine needs.
    ///
    /// # Errors
    /// If a program is missing; the message says how to get it.
    pub(crate) fn find(engine: ReferenceEngine) -> Result<Self> {
        let missing: Vec<_> =
            engine.recipe().tools.iter().filter(|(tool, _)| on_the_path(tool).is_none()).collect();
        let uv = on_the_path("uv").filter(|_| engine != ReferenceEngine::LlamaCpp); // its script needs pip
        let python = on_the_path("python3").or_else(|| on_the_path("python"));
        let (mut names, mut packages): (Vec<&str>, Vec<&str>) = missing.into_iter().copied().unzip();
        if uv.is_none() && python.is_none() {
            names.push("python3 (3.11 or newer, or uv)");
            packages.push("python3-venv");
        }
        if !names.is_empty() {
            return Err(Error::Usage(format!(
                "{} needs these programs on the PATH: {}; on Debian: apt-get install {}",
                engine.name(),
                names.join(", "),
                packages.join(" ")
            )));
        }
        match (uv, python) {
            (Some(uv), _) => Ok(Self::Uv(uv)),
            (None, Some(python)) => check_python(engine, &python).map(|()| Self::Pip(python)),
            (None, None) => unreachable!("the check above requires uv or Python"),
        }
    }

    /// Returns the name of the installer.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Installer::Uv(_) => "uv",
            Installer::Pip(_) => "pip",
        }
    }

    /// Makes the environment of an engine, unless another process has made it meanwhile.
    ///
    /// # Errors
    /// If it cannot be made; then only the log remains.
    pub(crate) fn make(
        &self,
        engine: ReferenceEngine,
        workplace: &ReferenceFolder,
        waiting: impl FnOnce(),
        watch: &mut dyn ProcessObserver,
    ) -> Result<PythonEnvironment> {
        let place = workplace.environment(engine);
        let name = engine.environment();
        let making = PendingOutput::begin(&place, &workplace.lock(&name), waiting)?;
        if let Some(made) = PythonEnvironment::made(engine, workplace) {
            return Ok(made);
        }
        let log = workplace.log(&name);
        begin_log(&log)?;
        let temporary = making.part("tmp"); // temporary files of a killed pip are deleted with it
        std::fs::create_dir(&temporary).map_err(Error::io("create", &temporary))?;
        let task = ProcessTask {
            what: &format!("making the environment of {}", engine.name()),
            advice: OFFLINE,
            log: &log,
        };
        for mut step in self.steps(engine, workplace, &making.part(PART))? {
            step.env("TMPDIR", &temporary).env("PIP_DISABLE_PIP_VERSION_CHECK", "1").env(SAFE_PATH, "1");
            task.run(&mut step, watch)?;
        }
        let environment = PythonEnvironment::at(engine, &making.part(PART));
        environment.check().map_err(|said| task.refuse(said))?;
        Ok(PythonEnvironment::at(engine, &making.replace(PART)?))
    }

    fn steps(
        &self,
        engine: ReferenceEngine,
        workplace: &ReferenceFolder,
        folder: &Path,
    ) -> Result<Vec<Command>> {
        let scripts = workplace.scripts(engine)?;
        if engine == ReferenceEngine::LlamaCpp {
            let mut build = alone(Path::new("bash"));
            build.arg(scripts.join(engine.recipe().scripts[0].0)).arg(folder);
            return Ok(vec![build]);
        }
        let python = PythonEnvironment::at(engine, folder).python;
        let (mut begin, mut install) = match self {
            Installer::Uv(uv) => (alone(uv), alone(uv)),
            Installer::Pip(base) => (alone(base), alone(&python)),
        };
        match self {
            Installer::Uv(_) => {
                begin.args(["venv", "--python", ">=3.11"]).current_dir(&scripts); // uv reads its settings
                install.args(["pip", "install", "--python"]).arg(python).current_dir(&scripts);
            }
            Installer::Pip(_) => {
                begin.args(["-m", "venv"]);
                install.args(["-m", "pip", "install", "--no-input", "--progress-bar", "off"]);
            }
        }
        begin.arg(folder);
        // The file lists all packages, so pip must not add dependencies.
        install.args(["--no-deps", "--require-hashes", "--requirement"]).arg(scripts.join(LOCKED));
        Ok(vec![begin, install])
    }
}

/// Advice when an environment cannot be made.
const OFFLINE: &str = "the packages come from PyPI; check the network (proxy: HTTPS_PROXY; mirror: PIP_INDEX_URL, \
                       UV_INDEX_URL), or name the Python of an existing environment with --python";

/// Returns a command from which variables that add other module folders are removed.
fn alone(program: &Path) -> Command {
    let mut command = Command::new(program);
    ELSEWHERE.iter().for_each(|variable| _ = command.env_remove(variable));
    command
}

/// Runs a Python to find missing modules.
fn look(mut python: Command, modules: impl IntoIterator<Item = &'static str>) -> io::Result<Output> {
    python.args(["-c", LOOK]).args(modules).env(SAFE_PATH, "1").output()
}

/// Checks that Python has `venv`, which is a separate package in Debian.
fn check_python(engine: ReferenceEngine, python: &Path) -> Result<()> {
    let looked = look(alone(python), ["venv", "ensurepip"]).map_err(Error::io("start", python))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let missing = said(&looked.stdout);
    let problem = match (looked.status.success(), missing.as_str()) {
        (true, "") => return Ok(()),
        (true, missing) => format!("it has no {missing}; on Debian: apt-get install python3-venv"),
        (false, _) => said(&looked.stderr).lines().next_back().unwrap_or("it fails").to_owned(),
    };
    Err(Error::Usage(format!(
        "{}: {problem}; or put uv on the PATH, or name the Python of an environment for {} with --python",
        python.display(),
        engine.name()
    )))
}
