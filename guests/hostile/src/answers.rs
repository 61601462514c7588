//! Attacks that are the answer itself. They are written as text: building a value of that size or depth
//! would hit the limits on memory and stack first.

use crate::{Args, End};

pub fn big_answer(args: &Args) -> End {
    let filler = "a".repeat(args.size("bytes", 64 << 20));
    End::Answer(format!(r#"{{"actions":[{{"type":"done","data":"{filler}"}}]}}"#))
}

pub fn many_actions(args: &Args) -> End {
    let action = r#"{"type":"tool.call","name":"x","arguments":{}}"#;
    End::Answer(format!(
        r#"{{"actions":[{}]}}"#,
        list(action, args.size("count", 1_000_000))
    ))
}

pub fn many_messages(args: &Args) -> End {
    let message = r#"{"role":"assistant","content":"x"}"#;
    let messages = list(message, args.size("count", 1_000_000));
    End::Answer(format!(r#"{{"messages":[{messages}],"actions":[{{"type":"done"}}]}}"#))
}

pub fn deep_json(args: &Args) -> End {
    let depth = args.size("depth", 100_000);
    let (open, close) = ("[".repeat(depth), "]".repeat(depth));
    End::Answer(format!(r#"{{"actions":[{{"type":"done","data":{open}{close}}}]}}"#))
}

pub fn big_state(args: &Args) -> End {
    let filler = "s".repeat(args.size("bytes", 2 << 20));
    End::Answer(format!(r#"{{"state":"{filler}","actions":[{{"type":"done"}}]}}"#))
}

pub fn not_json() -> End {
    End::Answer(r#"{"actions":[{"type":"#.to_owned())
}

fn list(item: &str, count: usize) -> String {
    let mut list = format!("{item},").repeat(count);
    list.pop();
    list
}
