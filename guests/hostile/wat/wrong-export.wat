;; Exports decide with numbers where the world has text.
(component
  (core module $agent
    (func (export "decide") (param i32) (result i32)
      (local.get 0)))
  (core instance $agent (instantiate $agent))
  (func (export "decide") (param "request" u32) (result u32)
    (canon lift (core func $agent "decide"))))
