;; A component without decide.
(component)
