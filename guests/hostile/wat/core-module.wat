;; A core module with the right name in it, not a component.
(module
  (memory (export "memory") 1)
  (func (export "decide") (param i32 i32) (result i32)
    (i32.const 16)))
