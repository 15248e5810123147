//! A server's tokenizer against the model's.

use crate::compare::Verdict;
use crate::error::{Error, Result};
use crate::probe::answer::Refusal;
use crate::probe::check::{Check, Subject};
use crate::probe::server::{Message, Rendered, Server};
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

/// Compares the ids of each text, with and without what begins a prompt; `lacking` says why there is no tokenizer, where
/// there is none.
///
/// # Errors
/// If the server breaks, or the model's own tokenizer cannot be used.
pub fn tokenization(server: &dyn Server, own: Option<&dyn Tokenizer>, lacking: &str) -> Result<Check> {
    const NAME: &str = "texts are the same tokens";
    let Some(own) = own else {
        return Ok(Check::cannot(Subject::Tokens, NAME, lacking));
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
                Err(Refusal::Cannot(why)) if same > 0 => {
                    let told = format!("{text:?} is refused, where other texts were not: {why}");
                    return Ok(Check::new(Subject::Tokens, NAME, (Verdict::Inconclusive, told)));
                }
                Err(refusal) => return Check::refused(Subject::Tokens, NAME, refusal),
            };
            let ours = own.encode(text, special)?;
            if theirs != ours {
                return Ok(Check::new(Subject::Tokens, NAME, (Verdict::Fail, parting(text, &theirs, &ours))));
            }
            same += 1;
        }
    }
    let how = if special_too { "with and without what begins a prompt" } else { "as prompts" };
    Ok(Check::new(
        Subject::Tokens,
        NAME,
        (Verdict::Pass, format!("{} texts, {how}: {same} lists of ids", TEXTS.len())),
    ))
}

/// Where two lists part, and by which name that is known.
fn parting(text: &str, theirs: &[u32], ours: &[u32]) -> String {
    let named = match (theirs, ours) {
        ([first, rest @ ..], _) if rest == ours && ours.first() == Some(first) => {
            format!("the token that begins a prompt ({first}) is there twice")
        }
        ([first, rest @ ..], _) if rest == ours => format!("{first} begins the prompt, and should not"),
        (_, [first, rest @ ..]) if rest == theirs => {
            format!("the token that begins a prompt ({first}) is missing")
        }
        _ => {
            let at = theirs.iter().zip(ours).take_while(|(one, other)| one == other).count();
            let id = |ids: &[u32]| ids.get(at).map_or("the end".to_owned(), u32::to_string);
            format!("token {} is {}, expected {}", at + 1, id(theirs), id(ours))
        }
    };
    format!("{text:?}: {named}")
}

/// A conversation, of which every word must be read.
const CONVERSATION: [Message; 3] =
    [("user", "Name the 3 colours."), ("assistant", "Red, green, blue."), ("user", "And in German?")];

/// What a template that is not this model's gives away: marks that are no tokens of it; a beginning that is there twice; messages
/// that are left out.
///
/// # Errors
/// If the server breaks, or the model's own tokenizer cannot be used.
pub fn template(server: &dyn Server, own: Option<&dyn Tokenizer>, lacking: &str) -> Result<Check> {
    const NAME: &str = "the template is of this model";
    let Some(own) = own else {
        return Ok(Check::cannot(Subject::Tokens, NAME, lacking));
    };
    let text = match server.template(&CONVERSATION) {
        Ok(Rendered::Text(text)) => text,
        Ok(Rendered::Ids(ids)) => {
            if let [first, second, ..] = ids.as_slice()
                && first == second
            {
                let told = format!(
                    "the token that begins a prompt ({first}) is there twice: by the template, and by the tokenizer"
                );
                return Ok(Check::new(Subject::Tokens, NAME, (Verdict::Fail, told)));
            }
            // Control tokens are left out: what is left of a mark is text.
            own.decode_lossy(&ids)?
        }
        Err(refusal) => return Check::refused(Subject::Tokens, NAME, refusal),
    };
    for mark in marks(&text) {
        if own.encode(mark, false)?.len() > 1 {
            let told = format!("it writes {mark}, which is no token of this model");
            return Ok(Check::new(Subject::Tokens, NAME, (Verdict::Fail, told)));
        }
    }
    let mut rest = text.as_str();
    for (_, said) in CONVERSATION {
        let Some(at) = rest.find(said) else {
            let told = format!("it leaves {said:?} out, or moves it");
            return Ok(Check::new(Subject::Tokens, NAME, (Verdict::Fail, told)));
        };
        rest = &rest[at + said.len()..];
    }
    let told = "every message is there in order, and every mark is a token (the words of the template were not compared)";
    Ok(Check::new(Subject::Tokens, NAME, (Verdict::Pass, told.to_owned())))
}

/// What is written like a control token: `<|im_start|>`.
fn marks(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("<|").filter_map(|(start, _)| {
        let length = text[start..].find("|>")? + 2;
        Some(&text[start..start + length])
    })
}

/// The ids of a prompt by both, and what to say where they are not the same.
///
/// # Errors
/// If the server breaks.
pub fn of_prompt(server: &dyn Server, text: &str) -> Result<Option<Vec<u32>>> {
    match server.tokenize(text, true) {
        Ok(ids) => Ok(Some(ids)),
        Err(Refusal::Cannot(_) | Refusal::NotAsked(_)) => Ok(None),
        Err(Refusal::Broken(error)) => Err::<_, Error>(*error),
    }
}
