//! The actions for continuous integration, run by a runner that is none: files for its variables, and what it would take
//! of a step's output as a command.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::sources::{self, SourceFile};
use crate::common::terminal::Terminal;
use sha2::{Digest, Sha256};

const FAILS: &str = "run --model tiny-llama2 --numerics f32 --no-causes --reference";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A machine of a runner: a folder in which steps run, and what they leave for it.
struct Runner(Terminal);

impl Runner {
    fn new() -> Self {
        let runner = Self(Terminal::new());
        fs::create_dir(runner.0.path().join("bin")).expect("it is made");
        std::os::unix::fs::symlink(
            assert_cmd::cargo::cargo_bin("xcheck"),
            runner.0.path().join("bin/xcheck"),
        )
        .expect("it is linked");
        runner
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A program that goes before the system's.
    fn program(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        _ = fs::remove_file(&path);
        // A program that a test beside this one starts would inherit the open file, and a file open for writing cannot be run.
        let text = path.with_extension("text");
        fs::write(&text, format!("#!/bin/sh\n{script}\n")).expect("it is written");
        assert!(Command::new("cp").arg(&text).arg(&path).status().expect("cp starts").success());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it may be run");
    }

    fn step(&self, script: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("sh");
        command.arg(root().join("contrib/ci").join(script)).args(arguments).current_dir(self.0.path());
        command.env("PATH", path).env("RUNNER_TEMP", self.path("temp"));
        for file in ["GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY"] {
            command.env(file, self.path(file));
        }
        command.envs(variables.iter().copied()).output().expect("sh starts")
    }

    fn judge(&self, arguments: &str) -> Output {
        self.step("run.sh", &[], &[("XCHECK_ARGUMENTS", arguments), ("XCHECK_REPORT", "out")])
    }

    fn left(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_default()
    }

    fn outputs(&self) -> BTreeMap<String, String> {
        let lines = self.left("GITHUB_OUTPUT");
        lines
            .lines()
            .map(|line| line.split_once('=').expect("name=value"))
            .map(|(k, v)| (k.into(), v.into()))
            .collect()
    }
}

/// A command, its title and its message.
type Told = (String, String, String);

/// What GitHub's runner takes as commands: lines that begin with ::, whatever blanks are before it, and ##[ anywhere;
/// until a line ends what `stop-commands` began.
fn commands(output: &str) -> Vec<Told> {
    let (mut told, mut until) = (Vec::new(), None::<String>);
    for line in output.lines() {
        let line = line.trim_start();
        if let Some(token) = &until {
            if line == format!("::{token}::") {
                until = None;
            }
            continue;
        }
        let Some((head, message)) = line.strip_prefix("::").and_then(|rest| rest.split_once("::")) else {
            told.extend(line.contains("##[").then(|| ("##[".to_owned(), String::new(), line.to_owned())));
            continue;
        };
        let (name, properties) = head.split_once(' ').unwrap_or((head, ""));
        if name == "stop-commands" {
            until = Some(message.to_owned());
            continue;
        }
        let title = properties.strip_prefix("title=").unwrap_or_default();
        told.push((name.to_owned(), unescaped(title), unescaped(message)));
    }
    assert_eq!(until, None, "commands are heard again");
    told
}

fn unescaped(text: &str) -> String {
    let codes = [("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")];
    codes.iter().fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("it is text")
}

// ---- the runner itself ------------------------------------------------------------------------------

#[test]
fn the_runner_hears_what_is_not_quoted_and_nothing_else() {
    let heard = |output: &str| commands(output).len();
    assert_eq!(heard("::error::a\n  ::warning title=b::c\nfine ::error::d\nx ##[error]e\n"), 3);
    assert_eq!(heard("::stop-commands::t\n::error::a\n##[error]b\n::t::\n"), 0);
    assert_eq!(heard("::stop-commands::t\n::error::a\n::t::\n::error::b\n"), 1);
}

// ---- a verdict --------------------------------------------------------------------------------------

#[test]
fn a_divergence_is_one_error_a_summary_and_an_exit_code() {
    let runner = Runner::new();
    let done = runner.judge(&format!("{FAILS} llama.cpp-q8_0"));
    assert!(done.status.success(), "{done:?}");
    let told = commands(&stdout(&done));
    assert_eq!(told.len(), 1, "{told:?}");
    let (kind, title, message) = &told[0];
    assert_eq!((kind.as_str(), title.as_str()), ("error", "xcheck: first divergence from llama.cpp-q8_0"));
    assert!(message.starts_with("q, layer 0, pass 0 (positions 0-"), "{message}");
    let outputs = runner.outputs();
    assert_eq!([&outputs["code"], &outputs["verdict"], &outputs["report"]], ["1", "fail", "out"]);
    assert!(runner.left("GITHUB_STEP_SUMMARY").starts_with("# xcheck: FAIL\n"));
    assert!(runner.path("out/junit.xml").is_file());
}

#[test]
fn a_pass_says_nothing_and_what_could_not_be_judged_is_a_warning() {
    let runner = Runner::new();
    let done = runner.judge("run --model tiny-llama2 --reference llama.cpp-q8_0");
    assert_eq!((commands(&stdout(&done)), &*runner.outputs()["code"]), (Vec::new(), "0"));
    let model = root().join("checkpoints/tiny-llama2/tiny-llama2-q8_0.gguf");
    fs::copy(model, runner.path("without-dumps.gguf")).expect("it is copied");
    let none = runner.judge("run --model without-dumps.gguf");
    let told = commands(&stdout(&none));
    assert_eq!((told[0].0.as_str(), &*runner.outputs()["code"]), ("warning", "3"), "{told:?}");
    assert_eq!(runner.outputs()["verdict"], "inconclusive");
}

#[test]
fn names_from_files_are_no_commands() {
    let runner = Runner::new();
    let shipped = root().join("checkpoints/tiny-llama2/dumps/llama.cpp-q8_0.safetensors");
    let name = "a\n::error::b %0A::error::c ##[error]d\r::add-mask::e,f.safetensors";
    fs::copy(shipped, runner.path(name)).expect("it is copied");
    // An argument of the action has no line break: a pattern finds the file.
    let xcheck = assert_cmd::cargo::cargo_bin("xcheck");
    runner.program("xcheck", &format!("exec {} \"$@\" --reference ./a*.safetensors", xcheck.display()));
    let done = runner.judge(FAILS.trim_end_matches("--reference"));
    assert_eq!(runner.outputs()["verdict"], "fail", "{done:?}");
    let told = commands(&stdout(&done));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].1.contains("a ::error::b %0A::error::c ##[error]d ::add-mask::e,f"), "{told:?}");
    // Were it not quoted, the log would hold another.
    let log = stdout(&done);
    let heard: Vec<&str> = log.lines().filter(|line| !line.starts_with("::stop-commands")).collect();
    assert!(commands(&heard.join("\n")).len() > 1, "{log}");
}

#[test]
fn an_error_is_told_with_its_message_and_its_lines_are_no_commands() {
    let runner = Runner::new();
    runner.judge(&format!("{FAILS} llama.cpp-q8_0"));
    let done = runner.judge("run\n--model\nno::such%0Amodel\n");
    let told = commands(&stdout(&done));
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].0.as_str(), told[0].1.as_str()), ("error", "xcheck"));
    assert!(told[0].2.contains("no::such%0Amodel"), "{told:?}");
    assert_eq!(runner.outputs()["code"], "2");
    // Of a mistake in the arguments there is no report, and no earlier one either.
    runner.judge("run --no-such-option");
    assert!(runner.left("out/report.md").starts_with("# xcheck: ERROR\n\nIt ended with exit code 2"));
    assert!(!runner.path("out/report.json").exists());
}

#[test]
fn arguments_are_cut_at_blanks_or_given_a_line_each_and_never_expanded() {
    let runner = Runner::new();
    runner.program("xcheck", "printf '[%s]' \"$@\" >>seen");
    runner.judge("a  * $HOME\tb\n");
    runner.judge("a b\n$(touch made)\n\n c\n");
    assert_eq!(
        runner.left("seen"),
        "[a][*][$HOME][b][--report][out][--format][github][a b][$(touch made)][ c][--report][out][--format][github]"
    );
    assert!(!runner.path("made").exists());
}

#[test]
fn a_run_that_a_signal_ends_is_an_error() {
    let runner = Runner::new();
    runner.program("xcheck", "kill -9 $$");
    let told = commands(&stdout(&runner.judge("run")));
    assert!(told.len() == 1 && told[0].2.ends_with("exit code 137"), "{told:?}");
    assert_eq!(runner.outputs()["verdict"], "error");
}

// ---- installing -------------------------------------------------------------------------------------

/// curl, which gives files of a folder: those of a server that has nothing else.
const CURL: &str = r#"while [ $# -gt 1 ]; do [ "$1" = --output ] && out=$2; shift; done
echo "$1" >>asked
[ -f "served/${1##*/}" ] || { printf 404 && exit; }
cp "served/${1##*/}" "$out" && printf 200"#;

fn install(runner: &Runner, what: &str, version: &str) -> Output {
    runner.program("curl", CURL);
    runner.program("uname", "[ $1 = -s ] && echo Linux || echo x86_64");
    let told = [("XCHECK_REPOSITORY", "some/body"), ("XCHECK_VERSION", version)];
    runner.step("install.sh", &[what], &told)
}

/// A release whose xcheck says hello, with the checksum of `stated`.
fn serve(runner: &Runner, stated: impl FnOnce(&[u8]) -> Vec<u8>) {
    let served = runner.path("served");
    fs::create_dir(&served).expect("it is made");
    fs::write(served.join("xcheck"), "#!/bin/sh\necho hello\n").expect("it is written");
    fs::set_permissions(served.join("xcheck"), fs::Permissions::from_mode(0o755)).expect("it may be run");
    let archive = "xcheck-x86_64-unknown-linux-gnu.tar.gz";
    let packed = Command::new("tar").args(["-czf", archive, "xcheck"]).current_dir(&served).status();
    assert!(packed.expect("tar starts").success());
    let bytes = stated(&fs::read(served.join(archive)).expect("it is there"));
    let checksum = format!("{}  {archive}\n", hex::encode(Sha256::digest(bytes)));
    fs::write(served.join(format!("{archive}.sha256")), checksum).expect("it is written");
}

#[test]
fn a_release_is_downloaded_checked_and_on_the_path() {
    let runner = Runner::new();
    serve(&runner, <[u8]>::to_vec);
    let done = install(&runner, "release", "v1.2");
    assert!(done.status.success() && stdout(&done).contains("hello"), "{done:?}");
    assert_eq!(runner.outputs()["installed"], "true");
    let folder = PathBuf::from(runner.left("GITHUB_PATH").trim());
    assert!(folder.join("xcheck").is_file());
    let asked =
        "https://github.com/some/body/releases/download/v1.2/xcheck-x86_64-unknown-linux-gnu.tar.gz\n";
    assert!(runner.left("asked").starts_with(asked), "{}", runner.left("asked"));
}

#[test]
fn a_release_that_is_not_what_its_checksum_says_is_refused() {
    let runner = Runner::new();
    serve(&runner, |bytes| [bytes, b"x"].concat());
    let done = install(&runner, "release", "v1.2");
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("nothing was installed"), "{done:?}");
    assert!(!runner.path("temp/xcheck/bin/xcheck").exists() && runner.left("GITHUB_PATH").is_empty());
}

#[test]
fn where_there_is_no_release_the_source_is_built_once() {
    let runner = Runner::new();
    let done = install(&runner, "release", "");
    assert!(done.status.success(), "{done:?}");
    assert_eq!((&*runner.outputs()["installed"], runner.outputs()["key"].len()), ("false", 64));
    runner.program(
        "cargo",
        "echo built >>built; while [ $1 != --root ]; do shift; done; mkdir -p $2/bin; printf '#!/bin/sh\\n' >$2/bin/xcheck; \
         chmod +x $2/bin/xcheck",
    );
    for _ in 0..2 {
        assert!(install(&runner, "build", "").status.success());
    }
    assert_eq!((runner.left("built").as_str(), &*runner.outputs()["installed"]), ("built\n", "true"));
}

#[test]
fn a_server_that_cannot_be_reached_is_no_missing_release() {
    let runner = Runner::new();
    install(&runner, "release", "");
    runner.program("curl", "exit 6");
    runner.program("uname", "[ $1 = -s ] && echo Linux || echo x86_64");
    let done = runner.step("install.sh", &["release"], &[("XCHECK_REPOSITORY", "some/body")]);
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("curl ended with 6"), "{done:?}");
    runner.program("curl", "printf 503");
    let done = runner.step("install.sh", &["release"], &[("XCHECK_REPOSITORY", "some/body")]);
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("answers 503"), "{done:?}");
}

#[test]
fn a_version_that_is_asked_for_is_installed_or_nothing_is() {
    let runner = Runner::new();
    let done = install(&runner, "release", "v9.9-mistyped");
    assert_eq!(done.status.code(), Some(2));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("version v9.9-mistyped was asked for") && said.contains("is not there"), "{said}");
    let done = runner.step("install.sh", &["release"], &[("XCHECK_VERSION", "v1.2")]);
    assert_eq!(done.status.code(), Some(2), "no repository has it: {done:?}");
    assert!(runner.left("GITHUB_OUTPUT").is_empty(), "nothing is built in its place");
}

/// The paths that macros include in what is compiled, from the root of the source on.
fn included() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for SourceFile { root: folder, path, text } in sources::files() {
        let file = root().join(folder).join(path);
        for piece in ["include_str!(", "include_bytes!(", "include_dir!("]
            .iter()
            .flat_map(|head| text.split(*head).skip(1))
        {
            let mut literals = piece.split(';').next().unwrap_or_default().split('"').skip(1).step_by(2);
            let path = literals.find(|literal| *literal != "CARGO_MANIFEST_DIR").expect("it names a path");
            let from_root = path.strip_prefix("$CARGO_MANIFEST_DIR/").or_else(|| path.strip_prefix('/'));
            let path = from_root
                .map_or_else(|| file.parent().expect("a folder").join(path), |path| root().join(path));
            let path = path.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            found.push(path.strip_prefix(root()).expect("it is of the source").to_owned());
        }
    }
    found
}

#[test]
fn the_name_of_a_build_in_a_cache_is_of_all_that_is_compiled_in() {
    let script = read("contrib/ci/install.sh");
    let (_, listed) = script.split_once("    find ").expect("it lists files");
    let listed: Vec<&str> = listed.split(" -type").next().unwrap_or_default().split(' ').collect();
    let included = included();
    assert!(included.iter().any(|path| path.starts_with("reference-scripts")), "{included:?}");
    let lacking: Vec<_> =
        included.iter().filter(|path| !listed.iter().any(|known| path.starts_with(known))).collect();
    assert!(lacking.is_empty(), "a change of these would go unseen: {lacking:?}");
}

#[test]
fn the_template_of_gitlab_expands_no_pattern() {
    let template = read("contrib/ci/gitlab.yml");
    let (before, _) = template.split_once("- xcheck $XCHECK_ARGUMENTS").expect("it runs xcheck");
    assert!(before.trim_end().ends_with("- set -f"));
}

// ---- what the pages say -----------------------------------------------------------------------------

/// The words that follow each `before`.
fn words_after<'t>(text: &'t str, before: &'t str) -> impl Iterator<Item = &'t str> {
    let word = |rest: &'t str| {
        rest.split(|c: char| !(c.is_alphanumeric() || "-_".contains(c))).next().unwrap_or_default()
    };
    text.split(before).skip(1).map(word)
}

#[test]
fn what_is_downloaded_is_what_a_release_makes() {
    let installer = read("contrib/ci/install.sh");
    let asked: Vec<_> = words_after(&installer, ") echo ").collect();
    assert_eq!(asked.len(), 4, "{asked:?}");
    for target in asked {
        assert!(released().iter().any(|released| released == target), "{target}");
    }
    let version = env!("CARGO_PKG_VERSION");
    assert!(
        read("CHANGELOG.md").contains(&format!("\n## [{version}]")),
        "a release takes its notes from there"
    );
    let (_, repository) = REPOSITORY.split_once("github.com/").expect("it is on GitHub");
    for page in ["docs/how-to/ci.md", "docs/tutorials/gate-ci.md"] {
        let used: Vec<_> =
            read(page).lines().filter(|line| line.contains("- uses: ")).map(str::to_owned).collect();
        assert_eq!(used, [format!("- uses: {repository}@v{version}")], "{page}");
    }
    assert!(read("pyproject.toml").contains(&format!("\nRepository = \"{REPOSITORY}\"\n")));
}

#[test]
fn workflows_run_scripts_that_are_there() {
    let mut found = 0;
    for workflow in [".github/workflows/release.yml", ".github/workflows/hardening.yml"] {
        for rest in read(workflow).split("run: ").skip(1) {
            let command = rest.split([' ', '\n']).next().unwrap_or_default();
            if command.contains('/') {
                let told =
                    fs::metadata(root().join(command)).unwrap_or_else(|error| panic!("{command}: {error}"));
                assert!(told.permissions().mode() & 0o111 != 0, "{command} is not executable");
                found += 1;
            }
        }
    }
    assert!(found >= 8, "{found}");
    assert!(read(".ci/run").contains("python/tests/run.sh"));
}

const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// The targets of a release.
fn released() -> Vec<String> {
    let release = read(".github/workflows/release.yml");
    let targets: Vec<_> = words_after(&release, "target: ").map(str::to_owned).collect();
    assert_eq!(targets.len(), 5, "{targets:?}");
    targets
}

/// The program and the archive of a target, as .ci/archive names them.
fn archive(target: &str) -> (String, String) {
    let script = read(".ci/archive");
    let (_, rest) = script.split_once("case \"$target\" in").expect("it names them by target");
    let (cases, _) = rest.split_once("esac").expect("a case ends");
    let named = format!("target={target}; case \"$target\" in{cases}esac; echo $program $archive");
    let done = Command::new("sh").args(["-c", &named]).output().expect("sh starts");
    let told = stdout(&done);
    let (program, archive) = told.trim().split_once(' ').expect("two names");
    (program.to_owned(), archive.to_owned())
}

fn url_of(target: &str) -> String {
    format!("{REPOSITORY}/releases/download/v{}/{}", env!("CARGO_PKG_VERSION"), archive(target).1)
}

#[test]
fn binstall_gets_the_archives_of_a_release() {
    let manifest: toml::Value = toml::from_str(&read("Cargo.toml")).expect("it is TOML");
    let told = &manifest["package"]["metadata"]["binstall"];
    for target in released() {
        let own = told["overrides"].get(&target).and_then(|own| own.get("pkg-fmt"));
        let format = own.unwrap_or(&told["pkg-fmt"]).as_str().expect("a text");
        let (suffix, extension) = match (format, target.contains("windows")) {
            ("tgz", false) => (".tar.gz", ""),
            ("zip", true) => (".zip", ".exe"),
            other => panic!("{target}: {other:?}"),
        };
        let filled = |key: &str| {
            let values = [
                ("repo", REPOSITORY),
                ("version", env!("CARGO_PKG_VERSION")),
                ("target", &target),
                ("archive-suffix", suffix),
                ("bin", "xcheck"),
                ("binary-ext", extension),
            ];
            let template = told[key].as_str().expect("a text").to_owned();
            values.iter().fold(template, |text, (name, value)| text.replace(&format!("{{ {name} }}"), value))
        };
        assert_eq!(filled("pkg-url"), url_of(&target));
        assert_eq!(filled("bin-dir"), archive(&target).0);
    }
}

#[test]
fn the_formula_has_the_archives_and_checksums_of_a_release() {
    let terminal = Terminal::new();
    let targets: Vec<_> = released().into_iter().filter(|target| !target.contains("windows")).collect();
    let sum = |target: &str| hex::encode(Sha256::digest(target));
    for target in &targets {
        let file = terminal.path().join(format!("{}.sha256", archive(target).1));
        fs::write(file, format!("{}  {}\n", sum(target), archive(target).1)).expect("it is written");
    }
    let done = Command::new("bash")
        .arg(root().join(".ci/formula"))
        .arg(terminal.path())
        .output()
        .expect("bash starts");
    let formula = stdout(&done);
    assert!(done.status.success() && !formula.replace("#{bin}", "").contains('@'), "{done:?}");
    for target in &targets {
        let stated = format!("url \"{}\"\n      sha256 \"{}\"\n", url_of(target), sum(target));
        assert_eq!(formula.matches(&stated).count(), 1, "{target}: {formula}");
    }
    assert_eq!(formula.matches("url \"").count(), targets.len());
    // A release that lacks an archive has no formula.
    fs::remove_file(terminal.path().join(format!("{}.sha256", archive(&targets[0]).1)))
        .expect("it was there");
    let done = Command::new("bash")
        .arg(root().join(".ci/formula"))
        .arg(terminal.path())
        .output()
        .expect("bash starts");
    assert!(!done.status.success());
}

#[test]
fn the_image_has_the_program_of_an_archive() {
    let file = read("Dockerfile");
    let machines: Vec<_> =
        file.split("machine=").skip(1).map(|rest| rest.split(' ').next().unwrap_or_default()).collect();
    let (_, unpacked) = file.split_once("tar -xzf /dist/").expect("it unpacks an archive");
    let (name, _) = unpacked.split_once(' ').expect("a name");
    let used: Vec<_> = machines.iter().map(|machine| name.replace("$machine", machine)).collect();
    let of_linux: Vec<_> =
        released().iter().filter(|target| target.contains("linux")).map(|target| archive(target).1).collect();
    assert_eq!(used, of_linux);
    assert!(!read(".dockerignore").lines().any(|line| line.contains("dist")), "the archives are in dist/");
}

#[test]
fn the_action_uses_what_it_declares_and_its_scripts_are_there() {
    let action = read("action.yml");
    for input in words_after(&action, "${{ inputs.") {
        assert!(action.contains(&format!("\n  {input}:\n")), "{input}");
    }
    let scripts: String = ["install.sh", "run.sh"].map(|name| read(&format!("contrib/ci/{name}"))).concat();
    for output in words_after(&action, ".outputs.") {
        assert!(
            scripts.contains(&format!("output {output} ")) || scripts.contains(&format!(" {output} \"$")),
            "{output}"
        );
    }
    // Nothing is put into a script by its text.
    assert!(action.lines().filter(|line| line.contains("run: ")).all(|line| !line.contains("${{")));
    let docs = read("docs/how-to/ci.md");
    let declared = action.split("outputs:\n").next().expect("inputs come first");
    for line in declared.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
        let input = line.trim().trim_end_matches(':');
        assert!(docs.contains(&format!("`{input}`")), "{input} is not in docs/how-to/ci.md");
    }
}
