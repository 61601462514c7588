//! Between the contract's types and the protocol's: [`outgoing`] to the guest, [`incoming`]
//! from it. What comes in is checked; what goes out was.

pub(crate) mod incoming;
pub(crate) mod outgoing;

#[cfg(test)]
mod tests {
    use belljar_protocol::decision::{Answer, DecisionResponse};

    use super::{incoming, outgoing};
    use crate::bindings::decisions as d;
    use crate::limits::Limits;

    /// What an agent reads as the proposal it can send back, and nothing is lost on the way.
    #[test]
    fn a_proposal_comes_back_as_it_went() {
        let text = r#"{
            "messages": [
                {"id":"m1","role":"assistant","content":[{"type":"text","text":"a"}],"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{"}}],"name":"n","thinking":{"signature":"s","n":1e3}},
                {"role":"tool","content":"done","tool_call_id":"c"}
            ],
            "actions": [
                {"type":"llm.call","id":"1","model":"m","messages":[{"role":"system","content":"s"}],"tools":[{"name":"t","description":"d","input":{"type":"object"}}],"temperature":0.5,"max_completion_tokens":7,"reasoning":{"effort":"xhigh","max_tokens":1,"exclude":false,"enabled":true},"stream":true,"retry":{"timeout_secs":1.5,"max_retries":2,"backoff_base_secs":1.0,"backoff_max_secs":2.0},"handler":"worker"},
                {"type":"tool.call","name":"t","arguments":{"a": 1.50},"handler":"client"},
                {"type":"tool.result","id":"2","attempt":1,"result":[1,2]},
                {"type":"tool.error","error":"e","retryable":true,"code":"rate_limited","detail":{"x":1}},
                {"type":"llm.result","response":{"content":"hi"}},
                {"type":"llm.error","error":"e","retryable":false,"code":"budget_exceeded"},
                {"type":"sub_agent.spawn","session_id":"s","agent_id":"a","tool_call_id":"c"},
                {"type":"message.send","session_id":"s","message":{"role":"user","content":"x"}},
                {"type":"interrupt","interrupt_id":"i","reason":"r","payload":null},
                {"type":"done","data":"d"}
            ],
            "state": {"n": 9007199254740993},
            "agent": {"model":"m","system":"s","stream":false,"handler":"server","format":"anthropic","tools":[{"name":"t","output":{},"handler":"client"}],"sub_agents":[{"id":"b","description":"d"}]}
        }"#;
        let response: DecisionResponse = serde_json::from_str(text).unwrap();
        let Answer::Respond(sent) = Answer::from(response) else {
            panic!()
        };
        let out = d::Answer::Respond(outgoing::response(&sent));
        assert_eq!(
            incoming::answer(out, &Limits::default()),
            Ok(Answer::Respond(sent))
        );
        assert_eq!(
            incoming::answer(d::Answer::Accept, &Limits::default()),
            Ok(Answer::Accept)
        );
    }
}
