;; Two memories that are within the limit each, and above it together: 80 MiB and 80 MiB.
(component
  (core module $agent
    (memory (export "memory") 1280)
    (memory 1280)
    ;; Every allocation gets fresh pages: one decision makes few.
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (i32.shl
        (memory.grow (i32.shr_u (i32.add (local.get 3) (i32.const 65535)) (i32.const 16)))
        (i32.const 16)))
    (func (export "decide") (param i32 i32) (result i32)
      (i32.const 16))
    ;; ok("{}"): the case, then pointer and length of the text.
    (data (i32.const 16) "\00\00\00\00\20\00\00\00\02\00\00\00")
    (data (i32.const 32) "{}"))
  (core instance $agent (instantiate $agent))
  (func (export "decide") (param "request" string) (result (result string (error string)))
    (canon lift (core func $agent "decide")
      (memory (core memory $agent "memory"))
      (realloc (core func $agent "realloc")))))
