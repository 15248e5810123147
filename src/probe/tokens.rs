//! A server's tokenizer against the model's.

use crate::compare::Verdict;
use crate::error::{Error, Result};
use crate::probe::answer::Refusal;
use crate::probe::check::{Check, Subject};
use crate::probe::server::Server;
use crate::tokenizer::Tokenizer;

/// Texts that tokenizers part at: spaces, lines, digits, marks, scripts, what is no letter.
pub const TEXTS: [&str; 8] = [
    "Hello, world! It's 12345.67",
    "  two spaces,\n\na line\tand a tab  ",
    "naïve café – “quotes” … ½",
    "Привет, 你好世界, こんにちは, مرحبا",
    "🙂👩\u{200d}💻 e\u{301}",
    "def f(x):\n    return x**2  # square\n",
    "don't we'll I'm he'd THEY'RE",
    "<unk> a_b::c 0x1F 3.14e-10",
];

/// Compares the ids of each text, with and without what begins a prompt.
///
/// # Errors
/// If the server breaks, or the model's own tokenizer cannot be used.
pub fn tokenization(server: &dyn Server, own: Option<&dyn Tokenizer>) -> Result<Check> {
    const NAME: &str = "texts are the same tokens";
    let Some(own) = own else {
        return Ok(Check::cannot(Subject::Tokens, NAME, "there is no tokenizer of a model (--model M)"));
    };
    let (mut same, mut special_too) = (0, true);
    for text in TEXTS {
        for special in [true, false] {
            let theirs = match server.tokenize(text, special) {
                Ok(theirs) => theirs,
                Err(Refusal::Cannot(_)) if !special => {
                    special_too = false;
                    continue;
                }
                Err(Refusal::Cannot(why)) => return Ok(Check::cannot(Subject::Tokens, NAME, why)),
                Err(Refusal::Broken(error)) => return Err(error),
            };
            let ours = own.encode(text, special)?;
            if theirs != ours {
                return Ok(Check::new(Subject::Tokens, NAME, (Verdict::Fail, parting(text, &theirs, &ours))));
            }
            same += 1;
        }
    }
    let how = if special_too { "with and without what begins a prompt" } else { "as prompts" };
    Ok(Check::new(Subject::Tokens, NAME, (Verdict::Pass, format!("{} texts, {how}: {same} lists of ids", TEXTS.len()))))
}

/// Where two lists part, and by which name that is known.
fn parting(text: &str, theirs: &[u32], ours: &[u32]) -> String {
    let named = match (theirs, ours) {
        ([first, rest @ ..], _) if rest == ours && ours.first() == Some(first) => {
            format!("the token that begins a prompt ({first}) is there twice")
        }
        ([first, rest @ ..], _) if rest == ours => format!("{first} begins the prompt, and should not"),
        (_, [first, rest @ ..]) if rest == theirs => format!("the token that begins a prompt ({first}) is missing"),
        _ => {
            let at = theirs.iter().zip(ours).take_while(|(one, other)| one == other).count();
            let id = |ids: &[u32]| ids.get(at).map_or("the end".to_owned(), u32::to_string);
            format!("token {} is {}, expected {}", at + 1, id(theirs), id(ours))
        }
    };
    format!("{text:?}: {named}")
}

/// The ids of a prompt by both, and what to say where they are not the same.
///
/// # Errors
/// If the server breaks.
pub fn of_prompt(server: &dyn Server, text: &str) -> Result<Option<Vec<u32>>> {
    match server.tokenize(text, true) {
        Ok(ids) => Ok(Some(ids)),
        Err(Refusal::Cannot(_)) => Ok(None),
        Err(Refusal::Broken(error)) => Err::<_, Error>(error),
    }
}
