//! What a command has left.

use std::process::Output;

pub struct Finished {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    pub fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints UTF-8");
        let code = output.status.code().expect("no signal ended it");
        Self { code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// What a command with exit code 0 has printed.
    #[track_caller]
    pub fn succeeded(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// One message on stderr that holds each of `expected`, nothing on stdout, exit code 2.
    #[track_caller]
    pub fn refused(self, expected: &[&str]) -> String {
        let Self { code, stdout, stderr } = self;
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{stderr}");
        for expected in expected {
            assert!(stderr.contains(expected), "'{expected}' is not in: {stderr}");
        }
        stderr
    }
}
