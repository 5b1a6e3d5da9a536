"""Words that tell how hard a question is, in English, German, French, Spanish, Italian, Portuguese and Russian; and terms, for
languages that put no space between words and for phrases.
"""

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


REASONING: Final = _words("""
    prove proof derive deduce justify analyze analyse analysis compare contrast evaluate critique argue optimize optimise
    design architect plan strategy tradeoff tradeoffs reason reasoning debug diagnose refactor implications hypothesis why
    beweise beweis herleiten begründe analysiere vergleiche bewerte optimiere entwerfe warum weshalb
    prouve démontre démontrer déduire justifie analyse compare évalue optimise pourquoi conçois
    demuestra demostrar deduce justifica analiza compara evalúa optimiza diseña
    dimostra dimostrare deduci giustifica analizza confronta valuta ottimizza progetta perché
    prove demonstre justifique analise avalie otimize projete
    докажи докажите обоснуй выведи проанализируй сравни сравните оцени оптимизируй почему объясни спроектируй
""")
REASONING_TERMS: Final = (
    "step by step", "in depth", "in detail", "pros and cons", "schritt für schritt", "étape par étape", "paso a paso",
    "por qué", "por que", "passo a passo", "шаг за шагом",
    "证明", "分析", "比较", "为什么", "推导", "逐步", "設計", "设计", "優化", "优化", "評估", "证",
    "証明", "比較", "なぜ", "分析し", "考察", "設計し", "증명", "분석", "비교", "왜 ", "단계별", "설계",
    "सिद्ध", "तुलना", "विश्लेषण", "क्यों", "أثبت", "قارن", "حلل", "لماذا",
)  # fmt: skip
MATHEMATICS: Final = _words("""
    equation integral derivative matrix eigenvalue theorem lemma probability polynomial logarithm combinatorics modulo
    convergence variance gradient topology algebra calculus inequality
    gleichung ableitung wahrscheinlichkeit satz matrix integral polynom
    équation intégrale dérivée théorème probabilité matrice
    ecuación derivada teorema probabilidad matriz
    equazione derivata teorema probabilità matrice
    equação probabilidade
    уравнение интеграл производная теорема вероятность матрица
""")
MATHEMATICS_TERMS: Final = (
    "方程", "积分", "微分", "定理", "概率", "矩阵", "積分", "確率", "行列", "방정식", "적분", "확률", "समीकरण", "معادلة",
)  # fmt: skip
CODE: Final = _words("""
    python javascript typescript java rust golang sql html css bash regex kubernetes docker api algorithm function compile
    stacktrace traceback exception segfault async await mutex thread deadlock unittest refactor algorithmus funktion
    algorithme fonction algoritmo función funzione função алгоритм функция функцию
""")
STEPS: Final = _words("""
    firstly secondly thirdly finally afterwards erstens zweitens drittens anschließend premièrement deuxièmement ensuite
    primero segundo finalmente innanzitutto infine сначала затем
""")
STEP_TERMS: Final = (
    "and then",
    "as well as",
    "und dann",
    "et puis",
    "y luego",
    "首先",
    "然后",
    "最后",
    "まず",
    "次に",
    "먼저",
    "그다음",
)
SIMPLE: Final = _words("""
    hi hello hey thanks thank please what who when where capital translate define hallo danke was wer wann wo hauptstadt
    übersetze bonjour salut merci qui quand où capitale traduis hola gracias qué quién cuándo dónde traduce ciao grazie
    cosa chi quando dove traduci olá obrigado quem onde привет спасибо что кто когда где столица переведи
""")
SIMPLE_TERMS: Final = (
    "你好",
    "谢谢",
    "是什么",
    "翻译",
    "こんにちは",
    "ありがとう",
    "とは",
    "안녕",
    "감사",
    "नमस्ते",
    "مرحبا",
    "شكرا",
)
