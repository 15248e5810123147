//! `xcheck man`: writes manual pages.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};

use crate::cli::{Cli, terminal};
use crate::error::{Error, Result};
use crate::verdict::Verdict;

/// Arguments of `xcheck man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Folder for xcheck.1 and a page of each command
    ///
    /// Without it, the page of xcheck itself is printed.
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Prints one page or writes all pages.
pub(crate) fn run(args: &ManArgs) -> Result<Verdict> {
    let mut command = Cli::command();
    match &args.directory {
        Some(directory) => {
            fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
            clap_mangen::generate_to(command, directory).map_err(Error::io("write pages to", directory))?;
        }
        None => {
            let mut page = Vec::new();
            let output = Path::new("standard output");
            command.build();
            clap_mangen::Man::new(command).render(&mut page).map_err(Error::io("write", output))?;
            _ = terminal::out(&String::from_utf8_lossy(&page));
        }
    }
    Ok(Verdict::Pass)
}
